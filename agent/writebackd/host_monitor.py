# SPDX-License-Identifier: GPL-2.0-or-later
"""Reads the host: devices, the probe, what stands behind the disks, conflicting tools.

The probe is opened again when a filesystem is mounted that was not hooked.  Opening takes 1 to 3 s,
and closing waits for the kernel at each hook, so threads do both.
"""

from __future__ import annotations

import gc
import logging
import os
from dataclasses import replace
from math import inf
from typing import Callable, Iterable, List, Optional, Sequence, Set, Tuple

from writebackd.alerts.alert_types import AlertName
from writebackd.kernel.child_process import ChildError, Job, Run
from writebackd.kernel.conflicting_tools import (
    ConflictingTool,
    ConflictMonitor,
    find_conflicting_tools,
)
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.hidepid import HidePid
from writebackd.kernel.lever_writers import writer_of
from writebackd.kernel.libbpf import BpfError
from writebackd.kernel.mounts import open_uevents
from writebackd.kernel.probe import BpfProbe, Probe, open_probe
from writebackd.kernel.sampler import Sampler
from writebackd.kernel.topology import Topology
from writebackd.notify import journal_route
from writebackd.policy.keys import Probe as ProbeSettings
from writebackd.policy.schema import PolicyError, device_globs, is_pattern, matches
from writebackd.storage.backing_watch import CACHES_S, BackingWatch, look_at_caches, together
from writebackd.types.levers import Action, ForeignWrite
from writebackd.types.samples import Sample
from writebackd.types.storage import Device


def linked(files: KernelFiles, device: str) -> str:
    """A path below /dev with links resolved: the kernel knows dm-0, not mapper/vg-root."""
    if not device.startswith("/dev/"):
        return device
    there = os.path.realpath(files.path(device))
    return f"/dev/{os.path.relpath(there, os.path.realpath(files.path('/dev')))}"


class HostMonitor:
    """Topology, probe, rescans and conflicting tools; `read` returns a tick's sample."""

    def __init__(
        self,
        files: KernelFiles,
        backend: str,
        fsync_hook: str,
        settings: ProbeSettings,
        named: Sequence[str],
        excluded: Callable[[Device], Optional[str]],
    ) -> None:
        """`backend`: the requested probe, or auto: as in `settings`; `named`: by --device.

        `fsync_hook`: the required hook for fsync, or auto.

        Raises OSError, PolicyError or BpfError if a requested probe or disk is unavailable.
        """
        self.backend = settings.backend if backend == "auto" else backend
        self._fsync_hook = fsync_hook
        self._files = files
        self._named = named
        self._settings = settings  # as of the start, also after a reload of the policy
        uevents, self._no_hotplug = open_uevents()
        self.topology = Topology(files, uevents)
        self.topology.scan()
        self._reprobe = Reprobe(self._open_probe, self.topology.devices)
        self.sampler = Sampler(files, self.topology, self._open_probe(), excluded)
        self._earlier_writers: Tuple[ForeignWrite, ...] = ()
        self._backings = BackingWatch(files)
        self._caches = BackingWatch(files, look=look_at_caches, every_s=CACHES_S)
        self.hidepid = HidePid(files)
        self.rivals = ConflictMonitor(lambda: find_conflicting_tools(files, os.getpid()))
        self.check_named(named)

    def check_named(self, named: Sequence[str]) -> None:
        """Raises PolicyError if a disk named by --device is missing: it would do nothing.

        A pattern may match disks that appear later.
        """
        known = ", ".join(sorted({device.name for device in self.topology.devices})) or "none"
        messages = tuple(
            f"--device {given}: no disk has this name. Disks with filesystems: {known}. For a disk"
            " that is added later, use a pattern of kernel names, such as 'sd*' or 'dm-*'"
            for given, name in zip(named, device_globs(named))
            if not (is_pattern(name) or self._is_there(name))
        )
        if messages:
            raise PolicyError(*messages)

    def unmatched(self) -> List[str]:
        """A message for each --device that currently matches nothing."""
        return [
            f"no device with a filesystem matches --device {given}"
            for given, glob in zip(self._named, device_globs(self._named))
            if not any(
                matches(glob, name, device.devno, device.driver)
                for device in self.topology.devices for name in (device.name, *device.leaves)
            )
        ]

    def _is_there(self, name: str) -> bool:
        """Whether a device or disk has this name, mounted or not; partitions do not count."""
        if any(
            name in (device.name, device.devno, *device.leaves) for device in self.topology.devices
        ):
            return True
        files = self._files
        return any(
            name in (disk, files.try_read(f"/sys/block/{disk}/dev"))
            for disk in files.listdir("/sys/block")
        )

    @property
    def problems(self) -> List[str]:
        problems = (
            self._no_hotplug, self.topology.problem, self.rivals.error, self._backings.error,
            self._caches.error,
        )
        return [problem for problem in problems if problem]

    @property
    def conflicting(self) -> Optional[Tuple[ConflictingTool, ...]]:
        """The conflicting tools found last, without processes that have exited."""
        tools = self.rivals.tools
        return tools and tuple([
            tool for tool in tools if not tool.where.startswith("pid ")
            or self._files.path(f"/proc/{tool.where.split()[1]}").exists()
        ])

    def refresh(self) -> None:
        """Update devices, and the probe so that it sees them all; both in threads."""
        if self.topology.refresh():
            # That leaves cycles, unlike a tick: 1 MB for 300 disks that come and go.
            gc.collect()
        self.sampler.probe = self._reprobe.better(self.sampler.probe, self.topology.devices)

    def read(
        self,
        now_s: float,
        wall_s: float,
        dt_s: float,
        actions: Tuple[Action, ...],
        watch_cgroups: bool,
        paced: Iterable[str],
    ) -> Sample:
        """Read one tick; see Sampler.read."""
        devices = self.topology.devices
        self._earlier_writers = self.sampler.writers
        backings = together(
            self._backings.seen(devices, now_s), self._caches.seen(devices, now_s)
        )
        return self.sampler.read(
            now_s, wall_s, dt_s, actions, watch_cgroups, frozenset(paced), backings
        )

    def named(
        self, foreign: Tuple[ForeignWrite, ...], watcher_pid: Optional[int]
    ) -> Tuple[ForeignWrite, ...]:
        """The same writes with their writers, if the probe saw them.

        A lever other than the limits is left to its writer, which is logged.
        """
        # Of the last tick as well: a write may come between reading the limits and the probe.
        seen = (self._earlier_writers, self.sampler.writers)
        own = (os.getpid(), watcher_pid)
        writers = []
        for write in foreign:
            writer = self.sampler.locate(writer_of(write, seen, own) or write)
            if not write.is_limit:
                log.warning(
                    "%s: %s set %s=%s: lever released",
                    AlertName.FOREIGN_WRITER.value, writer.who, write.lever, write.value,
                    extra=journal_route.foreign(writer),
                )
            setting = f"vm.{write.lever}={write.value}"
            at_boot = (
                tool.where for tool in self.rivals.tools or ()
                if tool.kind == "boot" and tool.setting == setting
            )
            writers.append(replace(writer, place=next(at_boot, None)))
        self.rivals.look()  # the writer may have been installed just now
        return tuple(writers)

    def _open_probe(self) -> Probe:
        settings = self._settings
        return open_probe(
            self.backend, self._files, settings.queue_latency, settings.talkers, self._fsync_hook
        )


log = logging.getLogger(__name__)


class Reprobe:
    """Reopens the probe if that may show more."""

    def __init__(self, open_again: Callable[[], Probe], devices: Sequence[Device]) -> None:
        """`devices` are those for which the probe was opened."""
        self._open = open_again
        self._devices = devices
        self._tried: Set[str] = set()  # filesystems that the probe was opened anew for
        self._job: Optional[Job] = None
        self._renewed: Optional[Probe] = None  # by the job

    def better(self, probe: Probe, devices: Sequence[Device]) -> Probe:
        """The same probe, or a better one, while `probe` is being closed. Never waits.

        Call it before reading a tick: the old probe reads that tick, the new one all later ones.
        """
        if self._job is not None:
            if not self._job.busy:
                failure, self._job = self._job.failure(), None
                if failure is not None:
                    log.error("probe not reopened: %s", failure)
                self._begin_after(probe)
            return probe
        if self._renewed is not None:
            renewed, self._renewed = self._renewed, None
            closing = Job(lambda _: probe.close(), inf, "probe")
            if not closing.busy and closing.failure() is not None:
                log.error("the old probe stays attached: %s", closing.failure())
            return renewed
        if devices is self._devices:
            return probe
        self._devices = devices
        types = {kind for device in devices for _, kind, _ in device.filesystems}
        self._tried &= types  # what is mounted again later may have lost its hooks meanwhile
        if not probe.covers(sorted(types - self._tried)):
            self._tried |= types  # what is refused now will be refused again
            log.info("reopening the probe for %s", ", ".join(sorted(types)))
            self._job = Job(self._open_again, inf, "probe")
        return probe

    def join(self, timeout_s: float) -> None:
        """Wait until the probe being opened is open, or the time is over."""
        if self._job is not None:
            self._job.wait(timeout_s)

    def _open_again(self, _: Run) -> None:
        try:
            self._renewed = self._open()
        except BpfError as error:
            raise ChildError(str(error)) from None

    def _begin_after(self, probe: Probe) -> None:
        """Discard what the new probe has read so far, except the stuck syncs of `probe`."""
        renewed = self._renewed
        if not isinstance(renewed, BpfProbe):
            self._renewed = None  # better what we have than nothing
            return
        try:
            if isinstance(probe, BpfProbe):
                renewed.go_on_from(probe)
            renewed.read()
        except BpfError as error:
            log.warning("the probe opened again may miss stuck syncs, or count twice: %s", error)
