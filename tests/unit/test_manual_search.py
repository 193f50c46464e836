# SPDX-License-Identifier: GPL-2.0-or-later
"""Questions of admins: the page that a search for their words finds first has the answer.

The search is BM25 over the pages of docs/, as a site's own search or `grep` by hand would rank
them; words of headings and of bold text count twice, those of a page's title and name more often.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import Dict, List

import pytest

from checkout import ROOT

K, B = 1.2, 0.75  # the usual constants
COMMON = set("a an and are be by can do does for from get has how i in is it its me my no not of on"
             " or so that the there they this to was what when where which who why will with you"
             " writebackd".split())  # fmt: skip


def words(text: str) -> List[str]:
    """Stems, less what stands in every question."""
    return [re.sub("(?<=...)(s|ing|ed)$", "", word) for word in re.findall(r"\w+", text.lower())
            if word not in COMMON]  # fmt: skip


def read(name: str) -> "Counter[str]":
    text = (ROOT / "docs" / name).read_text()
    heads = [first or second for first, second in
             re.findall(r"(?m)^#+ (.*)|^\*\*(.*?)\*\*", text)]  # fmt: skip
    title, name = heads[0], re.sub(r".*/|-|\.md", " ", name)
    return Counter(words(" ".join((text, *heads, *(title, name) * 3))))


PAGES: Dict[str, "Counter[str]"] = {
    name: read(name) for part in ("*.md", "howto/*.md", "reference/*.md", "explanation/*.md")
    for name in (str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").glob(part))
}  # fmt: skip
HOLDING = Counter(word for page in PAGES.values() for word in page)
MEAN = sum(sum(page.values()) for page in PAGES.values()) / len(PAGES)


def score(page: "Counter[str]", question: str) -> float:
    shorter = K * (1 - B + B * sum(page.values()) / MEAN)
    return sum(
        math.log(1 + (len(PAGES) - HOLDING[word] + 0.5) / (HOLDING[word] + 0.5))
        * page[word] * (K + 1) / (page[word] + shorter) for word in set(words(question))
    )  # fmt: skip


FAQ, KERNELS, RUNBOOK, INSTALL, FLEET, UNDO, RAID, FILES, DATABASE = (
    "explanation/faq.md", "reference/kernels.md", "howto/runbook.md", "howto/install.md",
    "howto/fleet.md", "howto/pin-and-undo.md", "reference/raid-tools.md",
    "reference/policy-files.md", "howto/protect-a-database.md",
)  # fmt: skip
# question, page, words of the answer
ASKED = [
    ("Copying to my NAS (SMB or NFS mount) stalls the whole desktop. Does it help? Can I cap the"
     " share as the desktop policy caps USB sticks?", FAQ, "shares are not capped"),
    ("Is fsync on my exFAT or vfat stick, on ntfs3 or bcachefs seen?", FAQ,
     "Their fsync is not seen, unless `--fsync-hook syscall` is given"),
    ("Each time I move GNOME's power slider, or plug in the charger, status says: yielded, tuned"
     " set dirty_ratio=40.", RUNBOOK, "name it for `performance` in `/etc/tuned/ppd.conf`"),
    ("Redis logs that its AOF fsync takes too long whenever the backup runs. Does writebackd help,"
     " and which setting do I need?", FAQ, 'nothing, also when "AOF fsync is taking too long"'),
    ("How do I install it on Ubuntu 22.04? kernels.md lists it (5.15 and 6.8 HWE).", KERNELS,
     "(Ubuntu 22.04, Debian 11, RHEL 8, SLES 15) install `writebackd-libbpf`"),
    ("Copying to a USB stick freezes my laptop. Does it help, with which kernel, and what do I have"
     " to set?", FAQ, "there is nothing to set, but `writebackctl policy match` must say"),
    ("My database runs in a container: which policy does it get?", FAQ,
     "A database in a container chooses no policy: [name one]"),
    ("PostgreSQL checkpoint makes commits slow: what should I set?", FAQ,
     "A flood by the database itself (checkpoint, compaction, `BGSAVE`) is limited"),
    ("saptune sets vm.dirty_bytes on a SAP HANA host: who wins?", FAQ, "They do: writebackd"),
    ("Does it run without systemd, under OpenRC or sysvinit?", KERNELS,
     "OpenRC, sysvinit: run `writebackd`"),
    ("Is Postfix or Dovecot protected on a mail server?", FAQ, "each message or change"),
    ("Should I disable the disk's write cache with hdparm -W0?", FAQ, "fsync empties that cache"),
    ("Does it help on TrueNAS, Unraid or a Synology NAS?", FAQ, "TrueNAS: no, it is ZFS"),
    ("preserved cache of an offline volume: why is my RAID write-through?", RUNBOOK,
     "`storcli /cX/vall show preservedcache`"),
    ("Are CacheCade, maxCache or SmartCache read?", RAID, "are not told apart from it"),
    ("Is there a DaemonSet for Kubernetes?", FAQ, "install the package on each node"),
    ("Does it work with ZFS?", FAQ, "it keeps dirty data in its own memory"),
    ("How do I run it on Kubernetes nodes?", FAQ, "Run it once per host"),
    ("SELinux denies bpf: what do I allow?", KERNELS, "look for denials of `bpf` or `perf_event`"),
    ("EBS gp3 cloud volume with burst credits: does the limit follow?", FAQ,
     "change the drain rate, and writebackd follows it"),
    ("Does it work on md RAID, LVM and dm-crypt?", KERNELS, "where the volume is the device"),
    ("How do I reload the configuration without a restart?", FLEET,
     "`systemctl reload writebackd` applies all but"),
    ("How do I uninstall it and get my settings back?", INSTALL,
     "Each stops the service first, which restores the original limits."),
    ("What does it cost in CPU and memory?", FAQ, "0.2 % of a core with four devices, 45 MB"),
    ("Do I need to reboot or rebuild after a kernel upgrade?", INSTALL,
     "A new kernel needs no rebuild"),
    ("Which program flooded the disk last night, and which service waited?", DATABASE,
     "`writebackctl history --since 12h` has each alert of last night"),
    ("How do I pin a limit for an hour?", UNDO, "`writebackctl pin BYTES --for 1h`"),
    ("The RAID controller's battery failed, what does it do?", RAID, "`CACHE_DEGRADED`"),
    ("Can I set a different limit for one disk by its by-id name or mount point?", FILES,
     "`[device /dev/disk/by-id/nvme-eui.0025385b71b0c3d4]`"),
    ("etcd logs \"slow fdatasync\": what should I do?", FAQ, 'also when it logs "slow fdatasync"'),
    ("What happens during suspend or live migration of a VM?", FAQ, "learns the new drain rate"),
    ("sync or umount takes minutes, how much data is still dirty?", FAQ, "status`, line `dirty`"),
    ("Is there a Docker image or a Helm chart?", FAQ, "no Docker image or Helm chart is shipped"),
    ("bpf program load fails: failed to find valid kernel BTF", KERNELS, "is then compiled on"),
    ("How do I upgrade without losing the limits?", INSTALL, "The limits stay in force"),
]


@pytest.mark.parametrize("question, page, answer", ASKED)
def test_the_page_that_is_found_first_has_the_answer(
    question: str, page: str, answer: str
) -> None:
    found = sorted(PAGES, key=lambda name: score(PAGES[name], question), reverse=True)
    assert found[0] == page, found[:3]
    assert answer in " ".join((ROOT / "docs" / page).read_text().split())
