# SPDX-License-Identifier: GPL-2.0-or-later
"""Snapshots of the situations that the reports have to show."""

from __future__ import annotations

from dataclasses import replace
from typing import Optional, Tuple

from writebackd.alerts.alert_types import Alert, AlertName, Cause, Culprit, Evidence, Severity
from writebackd.alerts.foreign import foreign_alerts
from writebackd.kernel.conflicting_tools import ConflictingTool
from writebackd.policy import load_policy
from writebackd.report.snapshot import Snapshot
from writebackd.types.core_memory import Memory
from writebackd.types.decision import Basis, Decision, DeviceDecision, DeviceState, Mode, Rule
from writebackd.types.estimate import Estimate
from writebackd.types.levers import Action, ForeignWrite, HeldLever, Intrusion, LeverKind, VmLimits
from writebackd.types.samples import DeviceSample, HostInfo, ProbeInfo, Sample, TaskSample, VmState
from writebackd.types.storage import Device

MIB = 1 << 20
GIB = 1 << 30
# As though it came from no file, so that the screens need no host.
POLICY = replace(load_policy("db-hwraid"), files=(), chosen="")
HOST = HostInfo(page_size=4096, cpus_online=2, memory_bytes=int(23.4 * GIB))
RATIOS = VmLimits(0, 20, 0, 10)
LIBBPF = ProbeInfo(
    backend="libbpf",
    request_hook="tp_btf: block_rq_complete",
    fsync_hook="tp_btf: ext4_sync_file_enter/exit sys_enter/sys_exit xfs_file_fsync",
    misses=("fsync by io_uring and AIO, except on ext4",),
    lost=("3 syncs whose end was missed",),
    map_bytes=int(2.4 * MIB),
    bpf_ns_per_io=46.2,
)
PROCFS = ProbeInfo(
    backend="procfs",
    request_hook="/proc/diskstats",
    misses=("fsync latency and rate", "who dirties", "journal and flush apart from data"),
)
RAID = Device(
    "sda", "8:0", "8:0", ("sda",), ("8:0",),
    (("8:1", "ext4", "/"), ("8:2", "xfs", "/var/lib/postgresql")),
    True, "write through", "megaraid_sas", 9,
)  # fmt: skip
STICK = Device(
    "sdb", "8:16", "8:16", ("sdb",), ("8:16",), (("8:17", "vfat", "/media/usb"),),
    True, "write back", "usb-storage", 11,
)  # fmt: skip
VOLUME = Device(
    "dm-0", "254:0", "254:0", ("nvme0n1", "nvme1n1"), ("259:0", "259:1"),
    (("254:0", "xfs", "/srv/backup/archive/2024"),), False, "write back", "nvme", 3,
)  # fmt: skip


def vm(limit: int, background: int, dirty: int, writeback: int = 0, ratio: bool = False) -> VmState:
    limits = RATIOS if ratio else VmLimits(limit, 0, background, 0)
    return VmState(limits, dirty, writeback, limit, background)


def estimate(name: str, **figures: object) -> Estimate:
    quiet = Estimate(
        name=name, write_rate=0.0, background_rate=0.0, drain_rate=None,
        sync_rate=0.0, demand=False, demand_known=True,
        flooded=False, held_back=False, full=False, limit_share=1.0, rate=0.0,
        cache_bytes=None, fill_bytes=0.0, fsync_p50_s=None, fsync_p99_s=None,
        fsyncs=0, fsync_total_s=0.0,
        fsyncs_inflight=0, oldest_fsync_s=0.0, baseline_s=None, slow_share=None, inflight=0,
    )  # fmt: skip
    whole = replace(quiet, **figures)  # type: ignore[arg-type]
    if "commit_p99_s" in figures or "commit_total_s" in figures:
        return whole
    # As where the sleep in write() is not visible.
    return replace(
        whole, commit_total_s=whole.fsync_total_s, commit_p50_s=whole.fsync_p50_s,
        commit_p99_s=whole.fsync_p99_s, oldest_commit_s=whole.oldest_fsync_s,
    )


def flooded(name: str, p50: float, p99: float, syncs: float, slow: float) -> Estimate:
    return estimate(
        name, write_rate=248.0 * MIB, background_rate=240.0 * MIB, drain_rate=250.0 * MIB,
        sync_rate=syncs,
        demand=True, flooded=True, fsync_p50_s=p50, fsync_p99_s=p99, baseline_s=0.00035,
        slow_share=slow, inflight=3,
    )  # fmt: skip


def throttled(shown: Snapshot) -> Snapshot:
    """Commits on sda sleep in write() for four fifths of their time."""
    sda = replace(
        shown.estimates["sda"], commit_p50_s=0.0031, commit_p99_s=0.14, commit_write_share=0.8,
        oldest_commit_s=0.2,
    )  # fmt: skip
    return replace(shown, estimates={**shown.estimates, "sda": sda})


Row = Tuple[Device, Estimate, DeviceDecision]


def snapshot(
    state: VmState,
    rows: Tuple[Row, ...],
    decision: Decision,
    tasks: Tuple[TaskSample, ...] = (),
    **more: object,
) -> Snapshot:
    sample = Sample(
        time_s=90_000.0, wall_s=1_717_200_725.0, dt_s=1.0, host=HOST, vm=state, tasks=tasks,
        devices=tuple(
            DeviceSample(device, inflight=e.inflight, busy_share=1.0 if e.flooded else 0.0)
            for device, e, _ in rows
        ),
    )  # fmt: skip
    plain = Snapshot(
        version="0.1.0", policy=POLICY, started_s=78_480.0,
        started_wall_s=1_717_189_205.0,
        sample=sample, estimates={e.name: e for _, e, _ in rows},
        decision=replace(decision, devices=tuple(d for _, _, d in rows)), memory=Memory(),
        originals=RATIOS, probe=LIBBPF, self_cpu_fraction=0.0021,
        self_rss_bytes=int(18.7 * MIB), state_dir="/var/lib/writebackd",
    )  # fmt: skip
    return replace(plain, **more)  # type: ignore[arg-type]


def in_mode(snapshot: Snapshot, mode: Mode) -> Snapshot:
    return replace(snapshot, memory=replace(snapshot.memory, mode=mode))


FLOOD = (
    TaskSample(4711, "dd", 1, "sda", 248 * MIB, 0.93),
    TaskSample(812, "postgres", 2, "sda", 3 * MIB, 0.02),
    TaskSample(900, "rsyslogd", 3, "sda", 40960),
    TaskSample(901, "bash", 3, "sda", 4096),
)


def idle() -> Snapshot:
    row = (
        RAID,
        estimate("sda", write_rate=0.3 * MIB, drain_rate=250.0 * MIB, sync_rate=0.4,
                 fsync_p50_s=0.00034, fsync_p99_s=0.0006, baseline_s=0.00035),
        DeviceDecision("sda", DeviceState.IDLE, 750 * MIB, "hardly any fsync (0.4/s): memory may"
                       " absorb bursts, as far as the device drains in 3 s", "sda-17",
                       ("0.4 fsync/s over the last 10 s is below the 5/s that count as demand.",
                        "The device drains 250M/s, so 3 s of it are 750M.")),
    )  # fmt: skip
    return snapshot(
        vm(750 * MIB, 375 * MIB, 9 * MIB),
        (row,),
        Decision(750 * MIB, 375 * MIB, 750 * MIB, "no device has sync demand; sda's relaxed target"
                 " is the smallest"),
    )  # fmt: skip


def guard() -> Snapshot:
    row = (
        RAID,
        flooded("sda", 0.00042, 0.0019, 1523.0, 0.01),
        DeviceDecision("sda", DeviceState.GUARD, 1_966_080, "sync demand (1523 fsync/s): resting"
                       " at what drains in 7.5 ms", "sda-42",
                       ("1523 fsync/s over the last 10 s: sync demand.",
                        "The device drains 250M/s, so 7.5 ms of it are 1.9M.",
                        "fsync p99 is 1.9 ms, below the objective of 5 ms: nothing to tighten.")),
    )  # fmt: skip
    return snapshot(
        vm(1_966_080, 983_040, 1_700_000, 200_000),
        (row,),
        Decision(1_966_080, 983_040, 1_966_080, "sda needs the smallest limit of the devices with"
                 " sync demand"),
        FLOOD,
    )  # fmt: skip


FULL = "what drains in 16 ms at 250M/s: 4.0M; p99 47 ms misses 5.0 ms"


def squeeze() -> Snapshot:
    row = (
        RAID,
        replace(flooded("sda", 0.0081, 0.047, 267.0, 0.92), full=True, held_back=True),
        DeviceDecision("sda", DeviceState.SQUEEZE, 4 * MIB, FULL, "sda-58", (FULL,),
                       Basis(0.005, MIB, 16e-3), Rule.KNEE),
    )  # fmt: skip
    return snapshot(
        vm(32 * MIB, 2 * MIB, 28 * MIB, 2 * MIB),
        (row,),
        Decision(32 * MIB, 2 * MIB, 4 * MIB, "sda needs 4M; 30M wait to be written, the limit"
                 " follows them down"),
        FLOOD,
    )  # fmt: skip


def exhausted() -> Snapshot:
    row = (
        RAID,
        flooded("sda", 0.09, 1.183, 12.0, 0.71),
        DeviceDecision("sda", DeviceState.EXHAUSTED, 1 * MIB, "at the floor of 1M for 30 ticks and"
                       " fsync"
                       " p99 is still 1183 ms: the queue is not made of dirty pages", "sda-77"),
    )  # fmt: skip
    stuck = replace(row[1], fsyncs_inflight=0, oldest_fsync_s=7.4, oldest_commit_s=7.4)
    row = (row[0], stuck, row[2])
    return snapshot(
        vm(1 * MIB, MIB // 2, 900_000, 130_000),
        (row,),
        Decision(MIB, MIB // 2, MIB, "sda holds the limit at the floor"),
        FLOOD,
    )


def blind() -> Snapshot:
    row = (
        RAID,
        estimate("sda", write_rate=248.0 * MIB, background_rate=248.0 * MIB, sync_rate=None,
                 demand_known=False, flooded=True, inflight=120),
        DeviceDecision("sda", DeviceState.BLIND, 64 * MIB, "the probe cannot see fsync: the"
                       " policy's cautious limit", "sda-3"),
    )  # fmt: skip
    return snapshot(
        vm(64 * MIB, 32 * MIB, 60 * MIB),
        (row,),
        Decision(64 * MIB, 32 * MIB, 64 * MIB, "no device can be judged; cautious limit"),
        probe=PROCFS,
        policy=replace(POLICY, name="default"),
        messages=("BPF is not usable on this kernel: no BTF in /sys/kernel/btf/vmlinux",),
    )


def yielded() -> Snapshot:
    calm = idle()
    write = ForeignWrite(
        "dirty_bytes", "536870912", 733, "tuned", 99, "/system.slice/tuned.service", "tuned -l"
    )
    row = (
        RAID,
        calm.estimates["sda"],
        DeviceDecision(
            "sda", DeviceState.YIELDED, None, "yielded: another process set the limits", "sda-18"
        ),
    )
    shown = snapshot(
        vm(512 * MIB, 64 * MIB, 9 * MIB),
        (row,),
        Decision(None, None, None, "tuned (pid 733) set dirty_bytes=536870912"),
        memory=Memory(
            yielded="tuned (pid 733) set dirty_bytes=536870912",
            intrusions=(Intrusion(write, 1_717_200_700.0),),
        ),
        rivals=(
            ConflictingTool(
                "warning",
                "tuned",
                "mine",
                "vm.dirty_ratio=40",
                "/etc/tuned/mine/tuned.conf:4",
                "tuned's active profile sets vm.dirty_ratio=40",
            ),
        ),
    )
    return replace(
        shown,
        sample=replace(shown.sample, foreign=(write,)),
        alerts=foreign_alerts(shown.memory, shown.sample),
    )


def pinned() -> Snapshot:
    row = (
        RAID,
        flooded("sda", 0.0025, 0.030, 343.0, 0.12),
        DeviceDecision("sda", DeviceState.PINNED, 15 * MIB, "pinned to 15M", "sda-60"),
    )
    return snapshot(
        vm(15 * MIB, 15 * MIB // 2, 14 * MIB),
        (row,),
        Decision(15 * MIB, 15 * MIB // 2, 15 * MIB, "pinned to 15M"),
        FLOOD,
        memory=Memory(pin_bytes=15 * MIB),
    )


def observe() -> Snapshot:
    shown = squeeze()
    return replace(
        in_mode(shown, Mode.OBSERVE),
        sample=replace(
            shown.sample,
            vm=vm(int(4.4 * GIB), int(2.2 * GIB), 3 * GIB, 60 * MIB, ratio=True),
        ),
    )


def collapse() -> Snapshot:
    """A flood while the agent only watches."""
    alert = Alert(
        AlertName.COLLAPSE, "sda", Severity.CRITICAL, Cause.FLOOD, 1_717_200_600.0,
        "sda: 2.0 fsync/s (usually 2857), caused by dd (pid 4711, backup.service) 248M/s; mean 1.0s"
        " (usual 0.35 ms), slowest 2.1s",
        "nothing, observing: `writebackctl enforce` would hold the limit at 4.0M",
        (Culprit(4711, "dd", "dd if=/dev/zero of=/srv/dump bs=1024", "/system.slice/backup.service",
                 "backup.service", None, 248.0 * MIB),),
        Evidence(1_717_200_600.0, 1_717_200_725.0, (("sync_rate", 2.0), ("backlog_s", 12.5))),
    )  # fmt: skip
    return replace(observe(), alerts=(alert,))


LEVERS = (
    HeldLever(LeverKind.FLUSH, "vm", "dirty_writeback_centisecs", 100, 500),
    HeldLever(LeverKind.BDI, "8:0", "max_bytes", 4 * MIB, 64 * MIB),
    HeldLever(LeverKind.BDI, "8:0", "min_bytes", 2 * MIB, 0),
    HeldLever(LeverKind.BDI, "8:0", "strict_limit", 1, 0),
    HeldLever(LeverKind.QUEUE, "sda", "nr_requests", 8, 64),
    HeldLever(LeverKind.PACE, "/system.slice/backup.service", "8:0", 225 * MIB, None),
)


def levers() -> Snapshot:
    """The guarded device with every kind of lever beside the limits."""
    return replace(guard(), levers=LEVERS)


def several() -> Snapshot:
    first = guard()
    sda = (RAID, first.estimates["sda"], first.decision.devices[0])
    stick = (
        STICK,
        estimate("sdb", write_rate=9.0 * MIB, background_rate=9.0 * MIB, drain_rate=9.5 * MIB,
                 flooded=True, inflight=2, sync_rate=0.0),
        DeviceDecision("sdb", DeviceState.IDLE, 29 * MIB, "no fsync: as far as it drains in 3 s;"
                       " has no say while another device has sync demand", "sdb-2"),
    )  # fmt: skip
    volume = (
        VOLUME,
        estimate("dm-0", drain_rate=1.9 * GIB, sync_rate=0.0, baseline_s=0.000041),
        DeviceDecision("dm-0", DeviceState.IDLE, 5 * GIB, "nothing to do", "dm-0-1"),
    )
    loops = tuple(
        (
            Device(f"loop{n}", f"7:{n}", f"7:{n}", (f"loop{n}",), (f"7:{n}",)),
            estimate(f"loop{n}"),
            DeviceDecision(
                f"loop{n}", DeviceState.EXCLUDED, None, "loop devices only when named", ""
            ),
        )
        for n in range(3)
    )
    shown = snapshot(
        first.sample.vm, (sda, stick, volume, *loops), first.decision, FLOOD, history_dropped=12
    )
    failed = Action("dirty_bytes", "1966080", "1048576", False, "Read-only file system")
    return replace(
        shown,
        sample=replace(
            shown.sample, actions=(failed,), errors=("/sys/block/sdc/stat: No such file",)
        ),
    )


def first_tick() -> Snapshot:
    """The first decision: nearly nothing is known."""
    quiet = estimate("sda", sync_rate=None, demand_known=False)
    idle = DeviceDecision("sda", DeviceState.IDLE, None, "no flood: original limits", "sda#1")
    return snapshot(
        vm(int(4.4 * GIB), int(2.2 * GIB), 0, ratio=True), ((RAID, quiet, idle),),
        Decision(None, None, None, "no flood: original limits"),
    )  # fmt: skip


ALL = {
    maker.__name__: maker
    for maker in (
        idle, guard, squeeze, exhausted, blind, yielded, pinned, observe, collapse, levers, several,
        first_tick,
    )
}  # fmt: skip


def hostile(text: str, mount: Optional[str] = None) -> Snapshot:
    """A process and a mount point whose names try to write on the terminal."""
    shown = guard()
    device = replace(RAID, filesystems=(("8:1", "ext4", mount or text),))
    return replace(
        shown,
        sample=replace(
            shown.sample,
            devices=(replace(shown.sample.devices[0], device=device),),
            tasks=(TaskSample(1, text, 1, "sda", MIB),),
        ),
    )
