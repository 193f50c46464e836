# SPDX-License-Identifier: GPL-2.0-or-later
"""Chooses the BPF programs that this kernel can load and attach.

Best hook first: fentry on the filesystems' own fsync functions, their
tracepoints, kprobes, and the syscalls last, because every syscall of the host
pays for those.  Versions are never compared: distributions backport, and a
kernel may refuse what its version promises.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from dataclasses import dataclass, field
from typing import Callable, Collection, Dict, List, Optional, Sequence, Tuple

from writebackd.kernel import bpf_layout
from writebackd.kernel.libbpf import BpfError, Object


@dataclass(frozen=True)
class Hook:
    """Programs that belong together; kprobes attach to `function`."""

    kind: str
    programs: Tuple[str, ...]  # in the order of attaching: the end before the begin
    target: str
    function: Optional[str] = None

    @property
    def name(self) -> str:
        return f"{self.kind}:{self.target}"


def _fentry(function: str) -> Hook:
    return Hook("fentry", (f"fexit_{function}", f"fentry_{function}"), function)


def _kprobe(function: str) -> Hook:
    return Hook("kprobe", ("kretprobe_fsync", "kprobe_fsync"), function, function)


COMPLETE = Hook("tp_btf", ("rq_complete",), "block_rq_complete")
# The old form first: a new kernel refuses it, an old one would take the new
# form and misread its arguments.
ISSUE = (
    Hook("tp_btf", ("rq_issue_old",), "block_rq_issue"),
    Hook("tp_btf", ("rq_issue",), "block_rq_issue"),
)
THROTTLED = (
    Hook("tp_btf", ("throttled_old",), "balance_dirty_pages"),
    Hook("tp_btf", ("throttled",), "balance_dirty_pages"),
)
DIRTIED = (
    Hook("tp_btf", ("dirty_folio",), "writeback_dirty_folio"),
    Hook("tp_btf", ("dirty_page",), "writeback_dirty_page"),
)
SYSCTL = Hook("cgroup", ("sysctl_write",), "sysctl")
SYSCALLS = Hook("tp_btf", ("sys_exit", "sys_enter"), "sys_enter/sys_exit")
SYNCS = ("fsync", "fdatasync", "syncfs")  # as the probe counts them

# Filesystem type -> hooks on its fsync, best first.
FSYNC: Dict[str, Tuple[Hook, ...]] = {
    "ext4": (
        _fentry("ext4_sync_file"),
        Hook(
            "tp_btf",
            ("tp_ext4_sync_file_exit", "tp_ext4_sync_file_enter"),
            "ext4_sync_file_enter/exit",
        ),
        _kprobe("ext4_sync_file"),
    ),
    "xfs": (_fentry("xfs_file_fsync"), _kprobe("xfs_file_fsync")),
    "btrfs": (_fentry("btrfs_sync_file"), _kprobe("btrfs_sync_file")),
    "f2fs": (_fentry("f2fs_sync_file"), _kprobe("f2fs_sync_file")),
    "bdev": (_fentry("blkdev_fsync"), _kprobe("blkdev_fsync")),
}
SYNCFS = (
    _fentry("sync_filesystem"),
    Hook("kprobe", ("kretprobe_syncfs", "kprobe_syncfs"), "sync_filesystem", "sync_filesystem"),
)
# Debian's compiler put sync_filesystem() into syncfs(2) for 5.10; freezes and unmounts call it.
SYNCFS_CALL = Hook("kprobe", ("kretprobe_syncfs_call", "kprobe_syncfs_call"), "syncfs")
# What shows O_DSYNC writes and msyncs where the syscalls have to do.
ENTRY_ONLY: Dict[str, Hook] = {
    "xfs": Hook("tp_btf", ("tp_xfs_file_fsync",), "xfs_file_fsync"),
    "btrfs": Hook("tp_btf", ("tp_btrfs_sync_file",), "btrfs_sync_file"),
}

NO_START_TIMES = "latency on queues that keep no start times (queue/wbt_lat_usec is 0)"

# What fsync is watched by, best first.  AUTO takes for each filesystem the best that works.
SYSCALL = "syscall"
TIERS = ("fentry", "tp_btf", "kprobe", SYSCALL)
AUTO = "auto"

# libbpf and the kernel say "not here" with these; anything else is a refusal.
_ABSENT = (errno.ESRCH, errno.ENOENT)


@dataclass
class Choice:
    """The hooks that loaded and attached, and what they do not see."""

    issue: Optional[Hook] = None
    sync: Dict[str, Hook] = field(default_factory=dict)  # filesystem or "syncfs" -> hook
    syscalls: List[Hook] = field(default_factory=list)
    others: List[Hook] = field(default_factory=list)
    refused: Dict[str, str] = field(default_factory=dict)  # kind:target -> error
    passed_over: List[Tuple[str, Hook]] = field(default_factory=list)  # filesystem, better hook
    misses: List[str] = field(default_factory=list)

    @property
    def hooks(self) -> List[Hook]:
        """In the order of attaching: the end of a sync before its beginning."""
        return [COMPLETE, *self.syscalls, *self.sync.values(), *self.others]

    @property
    def programs(self) -> List[str]:
        hooks = self.hooks + ([self.issue] if self.issue else [])
        return [name for hook in hooks for name in hook.programs]

    @property
    def sees_sleep(self) -> bool:
        """Whether sleep in balance_dirty_pages() is visible."""
        return any(hook in self.others for hook in THROTTLED)

    @property
    def misses_ends(self) -> bool:
        """Whether the end of a sync may be missed, which tracepoints never do.

        A kretprobe sees so many calls at once.  Another fentry or fexit on the same function,
        attached or detached, replaces its trampoline: a call in flight returns past ours.
        """
        return any(hook.kind != "tp_btf" for hook in self.sync.values())

    def fsync_summary(self, tracepoint: str) -> str:
        """One line: `fentry: ext4_sync_file xfs_file_fsync; tp_btf: sys_enter/sys_exit`.

        `tracepoint`: how these are watched.
        """
        by_kind: Dict[str, List[str]] = {}
        for hook in [*self.sync.values(), *self.syscalls]:
            kind = tracepoint if hook.kind == "tp_btf" else hook.kind
            by_kind.setdefault(kind, []).append(hook.target)
        return "; ".join(f"{kind}: {' '.join(names)}" for kind, names in by_kind.items())

    def passed_over_summary(self) -> str:
        """Why no better hooks: `fentry refused for ext4 (loading ...); kprobe not there for xfs`.

        Empty where the best are in force.
        """
        filesystems: Dict[Tuple[str, str], List[str]] = {}
        for name, hook in self.passed_over:
            filesystems.setdefault((hook.kind, self.refused.get(hook.name, "")), []).append(name)
        return "; ".join(
            f"{kind} refused for {' '.join(names)} ({error})" if error
            else f"{kind} not available for {' '.join(names)}"
            for (kind, error), names in filesystems.items()
        )

    def other_refusals(self) -> List[str]:
        """`tp_btf:balance_dirty_pages (loading ...)`: refused, and not in the summary above."""
        listed = {hook.name for _, hook in self.passed_over}
        return [f"{name} ({error})" for name, error in self.refused.items() if name not in listed]

    @property
    def filesystems(self) -> List[str]:
        """Filesystems whose fsync has its own hooks, whoever calls it."""
        return [name for name in self.sync if name in FSYNC and name != "bdev"]


def attach(obj: Object, hook: Hook, cgroup: Optional[str]) -> None:
    """Attach a loaded hook; BpfError or OSError if the kernel refuses."""
    for program in hook.programs:
        if hook.kind == "cgroup":
            if cgroup is None:
                raise BpfError("no cgroup v2 mount", errno.ENOENT)
            obj.attach_cgroup(program, cgroup)
        else:
            obj.attach(program, hook.function)


class Chooser:
    """Tries hooks one at a time, each in an object of its own."""

    def __init__(
        self,
        open_object: Callable[[], Object],
        cgroup: Optional[str],
        prepare: Callable[[Object], None],
    ) -> None:
        self._open = open_object
        self._prepare = prepare
        self._cgroup = cgroup
        self.refused: Dict[str, str] = {}

    def try_hook(
        self, hook: Hook, works: Callable[[Object], bool] = lambda obj: True
    ) -> Optional[int]:
        """None if it loads, attaches and `works`, else the errno.

        Raises BpfError or OSError when there is no object to try it in.
        """
        with self._open() as obj:
            try:
                obj.select(hook.programs)
                self._prepare(obj)
                obj.load()
                attach(obj, hook, self._cgroup)
                return None if works(obj) else errno.ENOENT
            except (BpfError, OSError) as error:
                number = error.errno or errno.EIO
                if number not in _ABSENT:
                    self.refused[hook.name] = str(error)
                return number

    def first(self, hooks: Sequence[Hook]) -> Tuple[Optional[Hook], bool]:
        """The first hook that works, and whether any target exists on this kernel."""
        exists = False
        for hook in hooks:
            number = self.try_hook(hook)
            if number is None:
                # That it is not the older form is no refusal worth telling.
                self.refused.pop(hook.name, None)
                return hook, True
            # A kernel without kprobes answers ENOENT to any kprobe.
            exists = exists or number not in _ABSENT
        return None, exists


def choose(
    open_object: Callable[[], Object],
    cgroup: Optional[str],
    talkers: bool,
    prepare: Callable[[Object], None],
    tier: str = AUTO,
    mounted: Collection[str] = tuple(FSYNC),
) -> Choice:
    """Find the best hooks; BpfError or OSError if block completions or fsync have none.

    `open_object`: the object, with nothing loaded; `cgroup`: where cgroup v2 is mounted;
    `talkers`: watch who dirties pages, a call per dirtied folio; `prepare` sets the constants,
    which the verifier sees; `tier`: what fsync has to be watched by; `mounted`: the filesystems
    for which system calls are watched where nothing better can be.
    """
    chooser = Chooser(open_object, cgroup, prepare)
    number = chooser.try_hook(COMPLETE)
    if number is not None:
        why = chooser.refused.get(COMPLETE.name, "")
        raise BpfError("block_rq_complete cannot be watched", number, why)
    choice = Choice(refused=chooser.refused)
    choice.issue, _ = chooser.first(ISSUE)
    if choice.issue is None:
        choice.misses.append(NO_START_TIMES)
    _choose_sync(chooser, choice, tier, mounted)
    _choose_syncfs_call(chooser, choice, tier)
    if tier != AUTO and not choice.filesystems and not choice.syscalls:
        why = choice.passed_over_summary() or f"{tier} not there"
        raise OSError(f"no hook on fsync: {why}; try --fsync-hook {AUTO}")
    for hooks, purpose in (
        (DIRTIED if talkers else (), "who dirties pages"),
        (THROTTLED, "time that programs sleep in write() before they sync"),
        ((SYSCTL,), "the name of a foreign writer"),
    ):
        hook, _ = chooser.first(hooks)
        if hook is not None:
            choice.others.append(hook)
        elif hooks:
            choice.misses.append(purpose)
    return choice


def _choose_sync(
    chooser: Chooser, choice: Choice, tier: str, mounted: Collection[str]
) -> None:
    unhooked = []
    for name, hooks in [*FSYNC.items(), ("syncfs", SYNCFS)]:
        wanted = [hook for hook in hooks if tier in (AUTO, hook.kind)]
        hook, exists = chooser.first(wanted)
        if hook is not None:
            choice.sync[name] = hook
        elif exists or tier == SYSCALL:
            unhooked.append(name)
        if hook is not None or exists:
            failed = wanted[: wanted.index(hook)] if hook is not None else wanted
            choice.passed_over += [(name, better) for better in failed]
    seen = ", ".join(choice.filesystems)
    # Every call of the host would pay for filesystems that it does not have.
    needed = [name for name in unhooked if name in mounted or tier != AUTO]
    if seen and not needed:
        choice.misses.append(f"fsync on filesystems other than {seen}")
        if "bdev" in unhooked:
            choice.misses.append("fsync on block devices")
        return
    everywhere = ", ".join(unhooked) or "all filesystems"
    if tier not in (AUTO, SYSCALL):
        choice.misses.append(f"fsync on {everywhere}")
        return
    if chooser.try_hook(SYSCALLS, lambda obj: counts(obj, *SYNCS)) is not None:
        choice.passed_over.append(("all", SYSCALLS))
        choice.misses.append(f"fsync on {everywhere}")
        return
    choice.syscalls.append(SYSCALLS)
    unseen = []
    for name in unhooked:
        entry = ENTRY_ONLY.get(name)
        if entry is not None and chooser.try_hook(entry) is None:
            choice.syscalls.append(entry)
        elif name != "syncfs":
            unseen.append(name)
    if unseen:
        choice.misses.append(f"O_DSYNC and msync on {', '.join(unseen)}")
    suffix = f", except on {seen}" if seen else ""
    choice.misses.append(f"fsync by io_uring, AIO and kernel threads{suffix}")
    choice.misses.append(f"fsync by 32-bit processes{suffix}")


def _choose_syncfs_call(chooser: Chooser, choice: Choice, tier: str) -> None:
    """Ensure that syncfs(2) is visible.

    The filesystems' own hooks get no such call, which could wait for a disk: they are on
    tracepoints, and on functions that are called by pointer, which no compiler can inline.
    """
    if choice.syscalls:
        return
    function = choice.sync.get("syncfs")
    if function and chooser.try_hook(function, _counts_syncfs) is None:
        return
    if tier in (AUTO, SYNCFS_CALL.kind) and chooser.try_hook(SYNCFS_CALL, _counts_syncfs) is None:
        choice.sync["syncfs(2)"] = SYNCFS_CALL
    else:
        choice.misses.append("syncfs")


def _counts_syncfs(obj: Object) -> bool:
    return counts(obj, "syncfs")


def counts(obj: Object, *calls: str) -> bool:
    """Whether each of these SYNCS is counted, tested on the kernel's own tmpfs, without a disk."""
    fd = os.memfd_create("sync")
    try:
        libc = ctypes.CDLL(None)
        for call in calls:
            getattr(libc, call)(fd)
        device = os.fstat(fd).st_dev
    finally:
        os.close(fd)
    name = f"{os.major(device)}:{os.minor(device)}"
    for key, value in obj.map("syncs").batch_reader(64).read():
        if bpf_layout.devno(int.from_bytes(key, sys.byteorder)) == name:
            counted = dict(zip(SYNCS, bpf_layout.SYNC_COUNTS.unpack_from(value)))
            return all(counted[call] for call in calls)
    return False
