#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""roots.py DIST [SUITE...]: the debs of `make dist` in clean roots of other Debian releases.

In each: install, first status in observe mode, doctor, purge; once with the release's libbpf 1, if
it has one, once with writebackd-libbpf and once without any.  The kernel is this host's, but its
limits are a copy, so another daemon may run outside.  Prints a table; ends with 1 when a step
failed or said something unexpected.  Needs root, mmdebstrap and the network; changes nothing
outside of the roots.  Debian 11 stands for distributions with an older libc and no libbpf 1.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Tuple

MIRROR = "http://deb.debian.org/debian"
WITHOUT_LIBBPF1 = "bullseye"
SUITES = (WITHOUT_LIBBPF1, "bookworm", "trixie", "sid")
# What status and doctor say with each library.
LIBRARIES = {
    "libbpf1": (", libbpf", "libbpf.so.1 loads, the system's"),
    "writebackd-libbpf": (", libbpf", "libbpf.so.1 loads, bundled with writebackd"),
    "none": (", procfs", "only disk statistics"),
}
NOT_ON_OFFER = "not on offer: libbpf1"
LIMIT_S = 900
# Each line that it prints begins with the name of a step.
STEPS = r"""
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 PYTHONDONTWRITEBYTECODE=1
echo "python $(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
echo "libc $(ldd --version | sed -n 's/.* //;1p')"
find / -xdev -name '*writebackd*' -not -path '/deb/*' >/deb/before
apt-get -q update >/deb/log 2>&1
case $1 in
    libbpf1) apt-get install -qy --no-install-recommends libbpf1 >>/deb/log 2>&1 || {
        echo "install NOT_ON_OFFER"; exit 0; }
        own= ;;
    writebackd-libbpf) own=/deb/writebackd-libbpf.deb ;;
    none) own= ;;
esac
apt-get install -qy --no-install-recommends /deb/writebackd.deb $own >>/deb/log 2>&1 || {
    tail -n 5 /deb/log; exit 1; }
echo "install $(writebackctl version | head -n 1)"
# A record of its own: that of a daemon outside is in an attribute of /sys.
mkdir -p /run/writebackd && printf /run/writebackd >/run/writebackd/in-use
writebackd --mode observe >/deb/daemon 2>&1 &
started=$(date +%s%N)
for i in $(seq 200); do
    writebackctl --json status >/deb/status 2>/deb/error
    # 1 is an answer as well: something needs attention.
    backend=$(python3 -c 'import json; print(json.load(open("/deb/status"))["probe"]["backend"])' \
        2>>/deb/error) && break
    sleep 0.1
done
[ -n "$backend" ] || { cat /deb/status /deb/daemon /deb/error; exit 1; }
echo "status after $(( ($(date +%s%N) - started) / 100000000 ))00 ms, $backend"
writebackctl doctor >/deb/doctor 2>&1 || { cat /deb/doctor; exit 1; }
echo "doctor $(grep -m 1 -o 'libbpf.so.1 loads, .*\|only disk statistics' /deb/doctor)"
kill %1; wait %1 || { cat /deb/daemon; exit 1; }
apt-get purge -qy writebackd ${own:+writebackd-libbpf} >>/deb/log 2>&1 || {
    tail -n 5 /deb/log; exit 1; }
find / -xdev -name '*writebackd*' -not -path '/deb/*' >/deb/after
cmp -s /deb/before /deb/after || { cat /deb/after; exit 1; }
echo "purge nothing left"
""".replace("NOT_ON_OFFER", NOT_ON_OFFER)
# Gone with their namespace.
MOUNTS = r"""
for each in proc sys dev; do mount --rbind /$each $0/$each; done
mount -o remount,bind,ro $0/sys
mkdir $0/deb/vm
for each in /proc/sys/vm/*; do cat $each >$0/deb/vm/${each##*/} 2>/dev/null || :; done
mount --bind $0/deb/vm $0/proc/sys/vm
exec chroot $0 bash /deb/steps $1
"""
COLUMNS = ("python", "libc", "install", "status", "doctor", "purge")


def main() -> int:
    if len(sys.argv) < 2 or os.geteuid() != 0 or not shutil.which("mmdebstrap"):
        print("usage: roots.py DIST [SUITE...], as root, with mmdebstrap", file=sys.stderr)
        return 2
    machine = subprocess.check_output(["dpkg", "--print-architecture"], text=True).strip()
    (package,) = Path(sys.argv[1]).glob("writebackd_*_all.deb")
    (library,) = Path(sys.argv[1]).glob(f"writebackd-libbpf_*_{machine}.deb")
    good = True
    print("| release | libbpf |", " | ".join(COLUMNS), "|\n|" + "---|" * (len(COLUMNS) + 2))
    with tempfile.TemporaryDirectory(prefix="writebackd-roots-") as name:
        for suite in sys.argv[2:] or SUITES:
            archive = Path(name, f"{suite}.tar")
            subprocess.run(["mmdebstrap", "--quiet", "--variant=minbase", "--include=python3",
                            # A mirror may be weeks behind.
                            '--aptopt=Acquire::Check-Valid-Until "false"',
                            suite, str(archive), MIRROR], check=True)  # fmt: skip
            for each in LIBRARIES:
                passed, row = lived(archive, each, package, library, Path(name, "root"))
                print(f"| {suite} | {each} | {row} |", flush=True)
                good = good and passed
            archive.unlink()
    return 0 if good else 1


def lived(archive: Path, kind: str, package: Path, library: Path, tree: Path) -> Tuple[bool, str]:
    """Whether all went well with this library in a fresh root, and its cells of the table."""
    tree.mkdir()
    subprocess.run(["tar", "-xf", str(archive), "-C", str(tree)], check=True)
    (tree / "deb").mkdir()
    shutil.copy(package, tree / "deb/writebackd.deb")
    shutil.copy(library, tree / "deb/writebackd-libbpf.deb")
    shutil.copy("/etc/resolv.conf", tree / "etc/resolv.conf")
    (tree / "deb/steps").write_text(STEPS)
    done = subprocess.run(
        ["unshare", "--mount", "--pid", "--fork", "--kill-child", "bash", "-ec", MOUNTS,
         str(tree), kind],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=LIMIT_S, check=False,
    )  # fmt: skip
    shutil.rmtree(tree)
    passed, row = judged(archive.stem, kind, done.returncode, done.stdout)
    if not passed:
        print(done.stdout, file=sys.stderr)
    return passed, row


def judged(suite: str, kind: str, code: int, output: str) -> Tuple[bool, str]:
    """Whether all steps were taken and said what is expected, and their cells of the table."""
    said = dict(re.findall(rf"(?m)^({'|'.join(COLUMNS)}) (.*)$", output))
    cells = [said.get(column, "-") for column in COLUMNS]
    backend, library = LIBRARIES[kind]
    if said.get("install") == NOT_ON_OFFER:
        good = code == 0 and suite == WITHOUT_LIBBPF1
    else:
        good = (code == 0 and said.get("status", "").endswith(backend)
                and said.get("doctor") == library
                and said.get("purge") == "nothing left")  # fmt: skip
    return good, " | ".join(cells if good else [*cells[:-1], "FAILED"])


if __name__ == "__main__":
    sys.exit(main())
