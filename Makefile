# SPDX-License-Identifier: GPL-2.0-or-later
#   make bpf                    compile the probe into the checkout
#   make check                  what tests/run does without root or VMs
#   make docs                   the pages of docs/reference that the code knows
#   make bench [SCENARIO=NAME | DIRECTORY=PATH] [CONTENDER=NAME] [WAY=native|vm|virtual] [QUICK=1]
#                               the agent against every rival on modelled disks, see
#                               tests/lab/README.md
#   make bench-clean            remove what a killed benchmark left
#   make install [DESTDIR=] [WHEEL=FILE]
#                               install into the system, from Debian's Python; of a wheel that is
#                               built already, or of one that it builds
#   make uninstall
#   make dist                   sdist, wheel, deb, rpm, SBOM and their checksums into build/dist

PREFIX ?= /usr
SYSCONFDIR ?= /etc
PYTHON ?= /usr/bin/python3
LIB := $(PREFIX)/lib/writebackd
UNITS ?= $(PREFIX)/lib/systemd/system
CATALOG := $(PREFIX)/lib/systemd/catalog
SYSUSERS := $(PREFIX)/lib/sysusers.d
DOC := $(PREFIX)/share/doc/writebackd
WHEEL ?= .
D := $(DESTDIR)

all: bpf

bpf:
	$(PYTHON) bpf/build_backend.py

check:
	tests/run ruff mypy imports unit

docs:
	PYTHONDONTWRITEBYTECODE=1 $(PYTHON) docs/man/reference.py
	PYTHONDONTWRITEBYTECODE=1 $(PYTHON) docs/man/schemas.py

bench:
	agent/setup.sh $(if $(filter-out native,$(WAY)),test,bench)
	build/venv/bin/python -m tests.lab.bench $(if $(SCENARIO),--scenario '$(SCENARIO)') \
		$(if $(DIRECTORY),--directory '$(DIRECTORY)') \
		$(if $(CONTENDER),--contender '$(CONTENDER)') $(if $(WAY),--way '$(WAY)') \
		$(if $(REPEATS),--repeats '$(REPEATS)') $(if $(QUICK),--quick)

bench-clean:
	PYTHONPATH=agent /usr/bin/python3 -m tests.lab.rig clean

# A directory of its own, so that an upgrade of Python does not lose it, and
# launchers that no PYTHONPATH of root's shell can mislead (-I).
launcher = printf '%s\n' '\#!$(PYTHON) -I' 'import sys' 'sys.path.insert(0, "$(LIB)")' \
	'from writebackd.$(1) import main' 'sys.exit(main())' > '$(D)$(PREFIX)/bin/$(2)' && \
	chmod 755 '$(D)$(PREFIX)/bin/$(2)'

install:
	install -d '$(D)$(PREFIX)/bin' '$(D)$(LIB)/policies.d' '$(D)$(UNITS)' '$(D)$(DOC)' \
		'$(D)$(CATALOG)' '$(D)$(SYSUSERS)' '$(D)$(SYSCONFDIR)/writebackd/policies.d' \
		'$(D)$(SYSCONFDIR)/default'
	rm -rf '$(D)$(LIB)/writebackd'
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps \
		--no-compile --upgrade --root-user-action=ignore --target '$(D)$(LIB)' '$(WHEEL)'
	rm -rf '$(D)$(LIB)/bin' '$(D)$(LIB)/writebackd/policies' '$(D)$(LIB)'/writebackd-*.dist-info
	install -m 644 policies/*.conf '$(D)$(LIB)/policies.d'
	ln -s ../policies.d '$(D)$(LIB)/writebackd/policies'
	$(PYTHON) -m compileall -q $(if $(D),-s '$(D)') '$(D)$(LIB)/writebackd'
	$(call launcher,cli.daemon_main,writebackd)
	$(call launcher,cli.ctl,writebackctl)
	$(call launcher,storage.collector,writebackd-raid)
	for unit in writebackd.service writebackd-watch.service writebackd-probe.service \
			writebackd-drain.service writebackd-raid.service writebackd-raid.timer \
			writebackd-caches.service; do \
		sed 's|/usr/bin/|$(PREFIX)/bin/|;s|/usr/share/|$(PREFIX)/share/|;s|/etc/|$(SYSCONFDIR)/|' \
			"systemd/$$unit" > '$(D)$(UNITS)'/"$$unit" && \
		chmod 644 '$(D)$(UNITS)'/"$$unit" || exit 1; \
	done
	sed 's|/usr/share/|$(PREFIX)/share/|' systemd/writebackd.catalog \
		> '$(D)$(CATALOG)'/writebackd.catalog
	chmod 644 '$(D)$(CATALOG)'/writebackd.catalog
	install -m 644 systemd/writebackd.sysusers '$(D)$(SYSUSERS)'/writebackd.conf
	# The admin's, once it is there.
	test -e '$(D)$(SYSCONFDIR)/default/writebackd' || install -m 644 systemd/writebackd.default \
		'$(D)$(SYSCONFDIR)/default/writebackd'
	install -m 755 systemd/restart '$(D)$(LIB)'
	cp -R README.md CHANGELOG.md CONTRIBUTING.md LICENSE SECURITY.md docs '$(D)$(DOC)'
	rm -rf '$(D)$(DOC)/docs/man'
	# Tests are not installed: a link to them leads nowhere, its text stays.
	find '$(D)$(DOC)' -name '*.md' -exec sed -Ei 's|\[([^]]*)\]\([./]*tests/[^)]*\)|\1|g' {} +
	PYTHONDONTWRITEBYTECODE=1 $(PYTHON) docs/man/generate.py '$(D)$(PREFIX)/share'

# Policies and drop-ins in $(SYSCONFDIR) are the admin's and stay.
uninstall:
	! cmp -s systemd/writebackd.default '$(D)$(SYSCONFDIR)/default/writebackd' || \
		rm '$(D)$(SYSCONFDIR)/default/writebackd'
	rm -rf '$(D)$(LIB)' '$(D)$(DOC)'
	rm -f '$(D)$(PREFIX)/bin/writebackd' '$(D)$(PREFIX)/bin/writebackctl' \
		'$(D)$(PREFIX)/bin/writebackd-raid' \
		'$(D)$(UNITS)/writebackd.service' '$(D)$(UNITS)/writebackd-watch.service' \
		'$(D)$(UNITS)/writebackd-probe.service' '$(D)$(UNITS)/writebackd-drain.service' \
		'$(D)$(UNITS)/writebackd-raid.service' '$(D)$(UNITS)/writebackd-raid.timer' \
		'$(D)$(UNITS)/writebackd-caches.service' \
		'$(D)$(CATALOG)/writebackd.catalog' '$(D)$(SYSUSERS)/writebackd.conf' \
		'$(D)$(PREFIX)/share/man/man1/writebackctl.1' '$(D)$(PREFIX)/share/man/man8/writebackd.8' \
		'$(D)$(PREFIX)/share/man/man8/writebackd-raid.8' \
		'$(D)$(PREFIX)/share/man/man5/writebackd.conf.5' \
		'$(D)$(PREFIX)/share/zsh/site-functions/_writebackctl'
	for program in writebackd writebackctl writebackd-raid; do \
		rm -f '$(D)$(PREFIX)/share/bash-completion/completions'/"$$program" \
			'$(D)$(PREFIX)/share/fish/vendor_completions.d'/"$$program.fish"; \
	done

dist:
	$(PYTHON) packaging/dist.py build/dist

clean:
	rm -rf build agent/writebackd/_bpf agent/writebackd.egg-info

.PHONY: all bpf check docs bench bench-clean install uninstall dist clean
