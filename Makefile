# outboxd. `make check` and `make demo` need nothing beforehand; `make help` lists all there is.

CC ?= cc
PKG_CONFIG ?= pkg-config
PREFIX ?= /usr/local
SYSCONFDIR ?= /etc
UNITDIR ?= $(PREFIX)/lib/systemd/system
DESTDIR ?=
B ?= build

VERSION := $(shell sed -n 's/^\#\# \([0-9][0-9.]*\).*/\1/p' CHANGELOG.md | head -n 1)
COMMIT := $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)

# The MySQL client library: whichever the system has; MYSQL=mysqlclient or MYSQL=libmariadb decides.
MYSQL ?= $(firstword $(foreach p,libmariadb mysqlclient,$(shell $(PKG_CONFIG) --exists $(p) 2>/dev/null && echo $(p))))
PACKAGES := $(MYSQL) librabbitmq yaml-0.1 libmicrohttpd libssl libcrypto

# Asked only for targets that compile something.
ifneq ($(filter-out clean help demo check lint format packages deb-check,$(or $(MAKECMDGOALS),all)),)
MISSING := $(strip $(foreach p,$(if $(MYSQL),,libmariadb) $(PACKAGES),$(shell $(PKG_CONFIG) --exists $(p) 2>/dev/null || echo $(p))) \
	$(shell echo '\#include <ev.h>' | $(CC) -E -x c - >/dev/null 2>&1 || echo libev))
PKG_CFLAGS := $(shell $(PKG_CONFIG) --cflags $(PACKAGES) 2>/dev/null)
PKG_LIBS := $(shell $(PKG_CONFIG) --libs $(PACKAGES) 2>/dev/null) -lev -lpthread -lm
CHECK_LIBS := $(shell $(PKG_CONFIG) --libs check json-c 2>/dev/null)
endif

CFLAGS ?= -O2 -g
WARN := -Wall -Wextra -Wshadow -Wpointer-arith -Wcast-qual -Wstrict-prototypes -Wmissing-prototypes \
	-Wwrite-strings -Wundef -Wformat=2 -Wvla -Wimplicit-fallthrough $(WERROR)
HARDEN := -fstack-protector-strong -fPIE $(if $(findstring sanitize,$(CFLAGS)),,$(if $(findstring -O,$(CFLAGS)),-D_FORTIFY_SOURCE=2))
DEFINES := -DOUTBOXD_VERSION='"$(VERSION)"' -DOUTBOXD_COMMIT='"$(COMMIT)"' -DOUTBOXD_SYSCONFDIR='"$(SYSCONFDIR)"'
ALL_CFLAGS = -std=c11 -D_GNU_SOURCE $(WARN) $(HARDEN) $(CFLAGS) -Ilib -Itests $(PKG_CFLAGS)
ALL_LDFLAGS = -pie -Wl,-z,relro,-z,now $(LDFLAGS)

LIB := $(sort $(wildcard lib/*/*.c))
CMD := $(sort $(wildcard cmd/outboxd/*.c))
SUPPORT := $(sort $(wildcard tests/support/*.c))
SIM := $(sort $(wildcard tests/sim/*.c))
UNIT := $(sort $(wildcard tests/unit/test_*.c))
INTEGRATION := $(sort $(wildcard tests/integration/test_*.c))
TOOLS := $(sort $(wildcard tests/tools/*.c))
BENCH := $(sort $(wildcard tests/bench/*.c))

obj = $(patsubst %.c,$(B)/obj/%.o,$(1))
LIB_A := $(B)/liboutboxd.a
SUPPORT_A := $(B)/libsupport.a
UNIT_BIN := $(patsubst tests/unit/%.c,$(B)/tests/%,$(UNIT))
INTEGRATION_BIN := $(patsubst tests/integration/%.c,$(B)/tests/it/%,$(INTEGRATION))
TOOL_BIN := $(patsubst tests/tools/%.c,$(B)/tools/%,$(TOOLS)) $(B)/tools/bench

.PHONY: all missing clean help unit sim fuzz integration tools tests check demo bench lint format install uninstall chaos e2e soak valgrind rabbitmq4 deb deb-check
all: missing $(B)/outboxd

missing:
	@if [ -n "$(MISSING)" ]; then \
		echo "missing build dependencies: $(MISSING)" >&2; \
		echo "on Debian or Ubuntu they are installed as root with: tests/packages build" >&2; \
		exit 2; \
	fi

$(B)/outboxd: $(call obj,$(CMD)) $(LIB_A)
	$(CC) $(ALL_CFLAGS) $(ALL_LDFLAGS) -o $@ $^ $(PKG_LIBS)

$(LIB_A): $(call obj,$(LIB))
$(SUPPORT_A): $(call obj,$(SUPPORT))
$(LIB_A) $(SUPPORT_A):
	@rm -f $@
	@mkdir -p $(@D)
	$(AR) rcs $@ $^

$(B)/obj/%.o: %.c | missing
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) $(DEFINES) -MMD -MP -c -o $@ $<

# One program a file: unit tests need the library, integration tests and tools the helpers too.
$(B)/tests/%: $(B)/obj/tests/unit/%.o $(SUPPORT_A) $(LIB_A)
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) $(ALL_LDFLAGS) -o $@ $^ $(CHECK_LIBS) $(PKG_LIBS)
$(B)/tests/it/%: $(B)/obj/tests/integration/%.o $(SUPPORT_A) $(LIB_A)
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) $(ALL_LDFLAGS) -o $@ $^ $(CHECK_LIBS) $(PKG_LIBS)
$(B)/tools/bench: $(call obj,$(BENCH)) $(LIB_A)
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) $(ALL_LDFLAGS) -o $@ $^ $(PKG_LIBS)
$(B)/tools/%: $(B)/obj/tests/tools/%.o $(SUPPORT_A) $(LIB_A)
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) $(ALL_LDFLAGS) -o $@ $^ $(PKG_LIBS)
$(B)/sim: $(call obj,$(SIM)) $(LIB_A)
	$(CC) $(ALL_CFLAGS) $(ALL_LDFLAGS) -o $@ $^ $(PKG_LIBS)

# Loaded into daemons under test; never with a sanitizer, whose own library has to be the first.
$(B)/shim.so: tests/shim/shim.c | missing
	@mkdir -p $(@D)
	$(CC) -std=c11 -D_GNU_SOURCE $(WARN) -O1 -g -fPIC -shared -o $@ $< -ldl

tools: all $(TOOL_BIN)
tests: tools $(UNIT_BIN) $(INTEGRATION_BIN) $(B)/shim.so $(if $(SIM),$(B)/sim)
.SECONDARY:

unit: $(UNIT_BIN)
	@tests/run $(UNIT_BIN)

sim: $(B)/sim
	@tests/run tests/sim/run
# From a fresh seed; stops at the first run that fails, and says how to repeat it.
fuzz: $(B)/sim
	@$(B)/sim --events $${SIM_EVENTS:-20000000}

integration: tests
	@tests/run $(INTEGRATION_BIN)

# These scripts install what is missing, start private servers and stop them again.
check:
	@tests/check
demo:
	@tests/demo/demo
bench:
	@tests/bench/bench
chaos:
	@tests/chaos/chaos
e2e:
	@tests/chaos/e2e
soak:
	@tests/chaos/soak
valgrind:
	@tests/chaos/soak valgrind
rabbitmq4:
	@OUTBOXD_RABBITMQ=sid OUTBOXD_SERVERS_DIR=$(B)/servers-4 tests/check integration modules
deb: all
	@conf/deb/build
deb-check:
	@tests/deb
lint:
	@tests/lint/lint
format:
	clang-format -i $$(git ls-files '*.c' '*.h')

install: all
	install -d $(DESTDIR)$(PREFIX)/sbin $(DESTDIR)$(PREFIX)/share/man/man8 $(DESTDIR)$(PREFIX)/share/man/man5 \
		$(DESTDIR)$(PREFIX)/share/outboxd/sql $(DESTDIR)$(PREFIX)/share/doc/outboxd $(DESTDIR)$(UNITDIR) \
		$(DESTDIR)$(PREFIX)/share/bash-completion/completions \
		$(DESTDIR)$(PREFIX)/lib/sysusers.d $(DESTDIR)$(SYSCONFDIR)/outboxd $(DESTDIR)$(SYSCONFDIR)/logrotate.d
	install -m 0755 $(B)/outboxd $(DESTDIR)$(PREFIX)/sbin/outboxd
	install -m 0644 cmd/outboxd/outboxd.8 $(DESTDIR)$(PREFIX)/share/man/man8/
	install -m 0644 conf/outboxd.yaml.5 $(DESTDIR)$(PREFIX)/share/man/man5/
	install -m 0644 sql/*.sql $(DESTDIR)$(PREFIX)/share/outboxd/sql/
	install -m 0644 conf/outboxd.rules.yaml conf/outboxd.dashboard.json $(DESTDIR)$(PREFIX)/share/outboxd/
	install -m 0644 conf/outboxd.bash-completion $(DESTDIR)$(PREFIX)/share/bash-completion/completions/outboxd
	install -m 0644 README.md CHANGELOG.md LICENSE conf/RUNNING.md conf/outboxd.full.yaml $(DESTDIR)$(PREFIX)/share/doc/outboxd/
	sed 's|@SBINDIR@|$(PREFIX)/sbin|g; s|@SYSCONFDIR@|$(SYSCONFDIR)|g' systemd/outboxd.service.in \
		>$(DESTDIR)$(UNITDIR)/outboxd.service
	chmod 0644 $(DESTDIR)$(UNITDIR)/outboxd.service
	install -m 0644 systemd/outboxd.sysusers $(DESTDIR)$(PREFIX)/lib/sysusers.d/outboxd.conf
	test -e $(DESTDIR)$(SYSCONFDIR)/logrotate.d/outboxd || \
		install -m 0644 systemd/outboxd.logrotate $(DESTDIR)$(SYSCONFDIR)/logrotate.d/outboxd
	test -e $(DESTDIR)$(SYSCONFDIR)/outboxd/outboxd.yaml || \
		install -m 0640 conf/outboxd.yaml $(DESTDIR)$(SYSCONFDIR)/outboxd/outboxd.yaml
# Onto this machine: the account, which reads the configuration and what lies beside it.
	test -n "$(DESTDIR)" -o "$$(id -u)" -ne 0 || { \
		getent group outboxd >/dev/null || systemd-sysusers $(PREFIX)/lib/sysusers.d/outboxd.conf || \
			useradd --system --user-group --home-dir /nonexistent --shell /usr/sbin/nologin outboxd; \
		chgrp outboxd $(SYSCONFDIR)/outboxd $(SYSCONFDIR)/outboxd/outboxd.yaml && \
		chmod 0750 $(SYSCONFDIR)/outboxd; \
	}

# The configuration stays.
uninstall:
	rm -rf $(DESTDIR)$(PREFIX)/share/outboxd $(DESTDIR)$(PREFIX)/share/doc/outboxd
	rm -f $(DESTDIR)$(PREFIX)/sbin/outboxd $(DESTDIR)$(PREFIX)/share/man/man8/outboxd.8 \
		$(DESTDIR)$(PREFIX)/share/man/man5/outboxd.yaml.5 $(DESTDIR)$(UNITDIR)/outboxd.service \
		$(DESTDIR)$(PREFIX)/lib/sysusers.d/outboxd.conf \
		$(DESTDIR)$(PREFIX)/share/bash-completion/completions/outboxd

clean:
	@if [ -d $(B)/servers ]; then OUTBOXD_SERVERS_DIR=$(B)/servers tests/servers stop >/dev/null 2>&1 || :; fi
	rm -rf $(B)

help:
	@echo 'make              build/outboxd'
	@echo 'make demo         the whole path in a few minutes, on a bare machine'
	@echo 'make check        all tests, on a bare machine'
	@echo 'make install      PREFIX=$(PREFIX) SYSCONFDIR=$(SYSCONFDIR) DESTDIR='
	@echo 'make deb          a Debian package in $(B); make deb-check builds, examines, installs and removes it'
	@echo 'make lint         formatter, static analysis, layering, man pages, scripts, unit file'
	@echo 'make bench        performance, measured in one run; its variables are in tests/bench/bench'
	@echo 'make chaos        real servers, random faults; CHAOS_SECONDS, SEED'
	@echo 'make e2e          a million events from commit to effect while everything is killed; E2E_EVENTS, SEED'
	@echo 'make fuzz         the simulation with fresh seeds, for minutes; SIM_EVENTS'
	@echo 'make soak         one daemon, a long mild load: is what it takes flat? SOAK_SECONDS'
	@echo 'make valgrind     the daemon under memcheck, for a minute'
	@echo 'make rabbitmq4    the integration tests with RabbitMQ 4, from Debian sid'
	@echo 'make unit sim integration   parts of check; integration wants: eval "$$(tests/servers env)"'
	@echo 'MYSQL=mysqlclient           builds with that client library instead of the first one found'

-include $(patsubst %.c,$(B)/obj/%.d,$(LIB) $(CMD) $(SUPPORT) $(SIM) $(UNIT) $(INTEGRATION) $(TOOLS) $(BENCH))
