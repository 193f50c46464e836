#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
# agent/setup.sh [run|lab|bench|test|fuzz]: makes a fresh Debian 12 or 13 ready.
#
#   run   what the agent needs (default)
#   lab   and what the modelled disk of the demo needs
#   bench and what the loads of the benchmark need: two databases among it
#   test  and what every test needs
#   fuzz  and the fuzzer, 35 MB from PyPI, which no other test needs
#
# Installs Debian packages (only what is missing; only that needs root), makes
# build/venv from Debian's own Python, and puts this checkout into it.  Says a
# line for each thing it does and nothing when all is there; the full output is
# in build/setup.log.
set -euo pipefail

# Always Debian's: its python3-* packages belong to this one, whatever another
# python3 on the PATH (pyenv, conda) may be.
PYTHON=/usr/bin/python3

RUN="libbpf1 make python3 python3-venv python3-pip python3-setuptools python3-wheel
    python3-psutil python3-pyroute2 python3-rich"
# For the probe, unless objects of these sources came along.
COMPILE="clang llvm libbpf-dev"
LAB="gcc libc6-dev nbdkit nbdkit-plugin-dev libnbd-bin fuse3 fio xfsprogs e2fsprogs btrfs-progs
    util-linux mount kmod procps"
BENCH="sysbench rsync mariadb-server-core postgresql redis-server fuse-overlayfs nbd-client"
TEST="$COMPILE python3-pytest python3-pytest-xdist python3-hypothesis systemd dbus
    qemu-system-x86 qemu-system-arm busybox-static file udev dmsetup bcache-tools git ca-certificates python3-libnbd prometheus
    prometheus-alertmanager tmux man-db tzdata fish
    debhelper dh-python dpkg-dev lintian mmdebstrap pkgconf pybuild-plugin-pyproject rpm rpmlint dnf
    apt-utils createrepo-c gcc-aarch64-linux-gnu libc6-dev-arm64-cross"
# For tests alone, which compare with it what the agent tells systemd and journald by itself: it
# comes along when others are installed, and nobody has to be root for it alone.
# systemd-dev: for the deb on Debian 13; on 12 systemd has it.
OPTIONAL="python3-systemd systemd-dev"

cd "$(dirname "$(readlink -f "$0")")/.."

# Whether the objects of the probe are there, made from these sources.
probe_compiled() { sha256sum --check --status agent/writebackd/_bpf/sha256sums 2>/dev/null; }

what=${1:-run}
probe_compiled || [ "${WRITEBACKD_BUILD_PROBE:-}" = no ] || RUN="$RUN $COMPILE"
case $what in
    run) packages="$RUN" ;;
    lab) packages="$RUN $LAB" ;;
    bench) packages="$RUN $LAB $BENCH" ;;
    test | fuzz) packages="$RUN $LAB $BENCH $TEST" ;;
    *) echo "usage: agent/setup.sh [run|lab|bench|test|fuzz]" >&2; exit 2 ;;
esac

root=$PWD
log=$root/build/setup.log
venv=$root/build/venv

say() { echo "setup: $*" >&2; }

fail() {
    say "$1"
    if [ -s "$log" ]; then
        tail -n 20 "$log" | sed 's/^/    /' >&2
        say "all of it is in $log"
    fi
    exit "${2:-1}"
}

# Debian's packages among the arguments that are not installed.
missing() {
    local package
    for package; do
        [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] ||
            echo "$package"
    done
}

# 9>&-: a service that a package starts must not keep our lock.
apt() {
    DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 "$@" >>"$log" 2>&1 \
        </dev/null 9>&-
}

update_lists() {
    say "updating the package lists"
    apt update || say "apt-get update failed, going on with the lists that are there"
}

# Its package makes a database and starts it, for nobody: the benchmark has its own.
keep_postgresql_quiet() {
    case " $packages " in *" postgresql "*) ;; *) return 0 ;; esac
    [ ! -e /etc/postgresql-common/createcluster.conf ] || return 0
    mkdir -p /etc/postgresql-common
    echo 'create_main_cluster = false' >/etc/postgresql-common/createcluster.conf
}

# Their packages start them, now and at every boot, for nobody: the tests start their own. Whoever
# wants one later: systemctl unmask.
keep_services_quiet() {
    local unit
    [ -d /etc/systemd/system ] || return 0
    for unit in prometheus prometheus-alertmanager redis-server; do
        case " $(echo $1) " in *" $unit "*) ;; *) continue ;; esac
        [ -e "/etc/systemd/system/$unit.service" ] || [ -L "/etc/systemd/system/$unit.service" ] ||
            ln -s /dev/null "/etc/systemd/system/$unit.service"
    done
}

install_packages() {
    local needed wished package
    # shellcheck disable=SC2086 # word lists
    needed=$(missing $packages) wished=$(missing $OPTIONAL)
    [ -n "$needed" ] || return 0
    if [ "$(id -u)" != 0 ]; then
        say "these Debian packages are missing, and installing them needs root:"
        # shellcheck disable=SC2086
        say "    apt-get install --no-install-recommends" $needed
        exit 4
    fi
    update_lists
    for package in $wished; do
        if apt-cache show "$package" >/dev/null 2>&1; then
            needed="$needed $package"
        else
            say "$package is not on offer here, going on without"
        fi
    done
    keep_postgresql_quiet
    keep_services_quiet "$needed"
    # shellcheck disable=SC2086
    say "installing" $needed
    # shellcheck disable=SC2086
    apt install -y --no-install-recommends $needed ||
        fail "apt-get install failed: check /etc/apt/sources.list and the network, then run again"
}

# Kernel images for the virtual machines are downloaded by name and version,
# which works with lists of today only.
refresh_lists() {
    [ "$(id -u)" = 0 ] || return 0
    [ -n "$(find /var/lib/apt/lists/partial -maxdepth 0 -mtime -1 2>/dev/null)" ] || update_lists
}

make_venv() {
    local version
    version=$("$PYTHON" -c 'import sys; print(sys.version)')
    # Another Python (an upgraded Debian) or another place (the scripts hold
    # absolute paths): make it anew.
    if [ "$("$venv/bin/python" -c 'import sys; print(sys.version)' 2>/dev/null)" != "$version" ] ||
        [ "$(cat "$venv/.made-for" 2>/dev/null)" != "$root" ]; then
        say "making build/venv"
        rm -rf "$venv"
        "$PYTHON" -m venv --system-site-packages "$venv" >>"$log" 2>&1 ||
            fail "making build/venv failed"
        echo "$root" >"$venv/.made-for"
    fi
}

compile_probe() {
    ! probe_compiled || return 0
    say "compiling the probe"
    "$PYTHON" bpf/build_backend.py >>"$log" 2>&1 || fail "compiling the probe failed"
}

pip() {
    PIP_DISABLE_PIP_VERSION_CHECK=1 "$venv/bin/python" -m pip -q "$@" >>"$log" 2>&1 </dev/null
}

# An editable install: Python and policies are used where they lie, so only
# other metadata makes it stale.
install_package() {
    local stamp
    stamp=$(cat setup.cfg pyproject.toml bpf/build_backend.py agent/writebackd/__init__.py |
        sha256sum)
    if [ "$(cat "$venv/.package" 2>/dev/null)" != "$stamp" ]; then
        say "installing writebackd into build/venv"
        pip install --no-build-isolation --no-deps --editable . ||
            fail "installing writebackd into build/venv failed"
        echo "$stamp" >"$venv/.package"
    fi
}

# install_extras STAMP EXTRA...: what setup.cfg wants for these, from PyPI.
install_extras() {
    local wanted stamp=$venv/.$1
    shift
    wanted=$("$PYTHON" - "$@" <<'END'
import configparser
import sys
config = configparser.ConfigParser()
config.read("setup.cfg")
extras = config["options.extras_require"]
print(*"".join(extras[name] for name in sys.argv[1:]).split())
END
    )
    if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
        say "installing $wanted"
        # shellcheck disable=SC2086
        pip install $wanted || fail "installing $wanted from PyPI failed: check the network"
        echo "$wanted" >"$stamp"
    fi
}

command -v apt-get >/dev/null && command -v dpkg-query >/dev/null ||
    fail "this script knows Debian only; elsewhere see docs/howto/install.md"
if ! { mkdir -p build && [ -w build ]; } 2>/dev/null; then
    say "$root/build is not writable: remove it, or run this as the user it belongs to"
    exit 4
fi
exec 9>build/setup.lock
flock 9
: >"$log"
install_packages
make_venv
compile_probe
install_package
case $what in
    test | fuzz)
        refresh_lists
        install_extras checkers test vm
        ;;
esac
[ "$what" != fuzz ] || install_extras fuzz fuzz
