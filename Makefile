# outboxd: make, make check, make demo; `make help` lists the rest.

CC ?= cc
PKG_CONFIG ?= pkg-config
PREFIX ?= /usr/local
DESTDIR ?=
SYSCONFDIR ?= /etc
UNITDIR ?= $(PREFIX)/lib/systemd/system
B ?= build
VERSION := $(shell sed -n 's/^## \([0-9][0-9.]*\).*/\1/p' CHANGELOG.md | head -n 1)
COMMIT := $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)

# The MySQL client library: whichever the system has, or MYSQL=mysqlclient / MYSQL=libmariadb.
MYSQL ?= $(firstword $(foreach p,libmariadb mysqlclient,$(shell $(PKG_CONFIG) --exists $(p) 2>/dev/null && echo $(p))))
PACKAGES := $(MYSQL) librabbitmq yaml-0.1 json-c libmicrohttpd

ifneq ($(filter-out clean help demo check lint packages,$(or $(MAKECMDGOALS),all)),)
MISSING := $(foreach p,$(if $(MYSQL),,libmariadb) $(PACKAGES),$(shell $(PKG_CONFIG) --exists $(p) 2>/dev/null || echo $(p)))
ifeq ($(wildcard /usr/include/ev.h /usr/local/include/ev.h $(EV_INCLUDE)/ev.h),)
MISSING += libev
endif
endif

WARN := -Wall -Wextra -Wshadow -Wpointer-arith -Wcast-qual -Wstrict-prototypes -Wmissing-prototypes \
	-Wwrite-strings -Wundef -Wformat=2 -Wvla -Wimplicit-fallthrough
CFLAGS ?= -O2 -g
HARDEN := -fstack-protector-strong -fPIE $(if $(findstring -O,$(CFLAGS)),$(if $(findstring sanitize,$(CFLAGS)),,-D_FORTIFY_SOURCE=2))
PKG_CFLAGS = $(shell $(PKG_CONFIG) --cflags $(PACKAGES))
PKG_LIBS = $(shell $(PKG_CONFIG) --libs $(PACKAGES)) -lev -lpthread -lm
ALL_CFLAGS = -std=c11 -D_GNU_SOURCE $(WARN) $(HARDEN) $(CFLAGS) -Ilib $(PKG_CFLAGS) \
	-DOUTBOXD_VERSION='"$(VERSION)"' -DOUTBOXD_COMMIT='"$(COMMIT)"' -DOUTBOXD_SYSCONFDIR='"$(SYSCONFDIR)"' \
	$(EXTRA_CFLAGS)
ALL_LDFLAGS = -pie -Wl,-z,relro,-z,now $(LDFLAGS)

LIB_SRC := $(sort $(wildcard lib/*/*.c))
CMD_SRC := $(sort $(wildcard cmd/outboxd/*.c))
LIB_OBJ := $(LIB_SRC:%.c=$(B)/obj/%.o)
CMD_OBJ := $(CMD_SRC:%.c=$(B)/obj/%.o)
UNIT_BIN := $(patsubst tests/unit/%.c,$(B)/tests/%,$(sort $(wildcard tests/unit/test_*.c)))
SUPPORT_SRC := $(sort $(wildcard tests/support/*.c))
SUPPORT_OBJ := $(SUPPORT_SRC:%.c=$(B)/obj/%.o)
SIM_SRC := $(sort $(wildcard tests/sim/*.c))
SIM_OBJ := $(SIM_SRC:%.c=$(B)/obj/%.o)
CHECK_LIBS = $(shell $(PKG_CONFIG) --libs check)

.PHONY: all clean help missing
all: missing $(B)/outboxd

missing:
	@if [ -n "$(strip $(MISSING))" ]; then \
		echo "missing build dependencies: $(strip $(MISSING))" >&2; \
		echo "install them on Debian or Ubuntu as root with: tests/packages build" >&2; exit 2; \
	fi

$(B)/outboxd: $(CMD_OBJ) $(B)/liboutboxd.a
	$(CC) $(ALL_CFLAGS) $(ALL_LDFLAGS) -o $@ $^ $(PKG_LIBS)

$(B)/liboutboxd.a: $(LIB_OBJ)
	@rm -f $@
	$(AR) rcs $@ $^

$(B)/obj/%.o: %.c | missing
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) -MMD -MP -c -o $@ $<

# Unit tests: every tests/unit/test_NAME.c is a program of its own.
$(UNIT_BIN): $(B)/tests/%: $(B)/obj/tests/unit/%.o $(B)/liboutboxd.a
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) $(ALL_LDFLAGS) -o $@ $^ $(CHECK_LIBS) $(PKG_LIBS)

unit: $(UNIT_BIN)
	@tests/run unit $(UNIT_BIN)

clean:
	rm -rf $(B)

-include $(LIB_OBJ:.o=.d) $(CMD_OBJ:.o=.d) $(UNIT_BIN:$(B)/tests/%=$(B)/obj/tests/unit/%.d) $(SUPPORT_OBJ:.o=.d) $(SIM_OBJ:.o=.d)
