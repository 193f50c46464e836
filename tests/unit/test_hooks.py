# SPDX-License-Identifier: GPL-2.0-or-later
"""Which hooks are chosen on kernels that lack some, and what is said of it."""

from __future__ import annotations

import errno
from typing import Any, Callable, Collection, List, Mapping, Optional

import pytest

from writebackd.kernel import hooks
from writebackd.kernel.hooks import AUTO, SYSCALL, Choice, Hook, choose

Answer = Callable[[Hook], Optional[int]]
ABSENT, REFUSED = errno.ESRCH, errno.EPERM


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Choice]:
    """The choice on a kernel that answers so to each hook: None, or an errno."""

    def chosen(
        answer: Answer, tier: str = AUTO, mounted: Collection[str] = tuple(hooks.FSYNC)
    ) -> Choice:
        def try_hook(self: hooks.Chooser, hook: Hook, works: Any = None) -> Optional[int]:
            number = answer(hook)
            if number == REFUSED:
                self.refused[hook.name] = "not permitted"
            return number

        monkeypatch.setattr(hooks.Chooser, "try_hook", try_hook)
        nothing: Any = None
        return choose(nothing, None, True, nothing, tier, mounted)

    return chosen


def of(answers: Mapping[str, int], but: Mapping[str, int]) -> Answer:
    """By kind; `but` has targets that differ."""

    def answer(hook: Hook) -> Optional[int]:
        return but[hook.target] if hook.target in but else answers.get(hook.kind)

    return answer


F2FS = {"f2fs_sync_file": ABSENT}  # hardly any kernel has it
MODULES = ("ext4_sync_file", "xfs_file_fsync", "btrfs_sync_file", "ext4_sync_file_enter/exit")


def test_with_the_best_there_is_nothing_to_explain(on: Callable[..., Choice]) -> None:
    choice = on(of({}, F2FS))
    assert {hook.kind for hook in choice.sync.values()} == {"fentry"}
    assert choice.passed_over_summary() == "" and not choice.syscalls
    assert choice.misses == ["fsync on filesystems other than ext4, xfs, btrfs"]


def test_what_better_hooks_do_not_do_is_told_by_filesystem(on: Callable[..., Choice]) -> None:
    """As Debian's 5.10, which has no fentry, and no tracepoint's type, of modules."""

    def answer(hook: Hook) -> Optional[int]:
        if hook.target in F2FS:
            return ABSENT
        return ABSENT if hook.target in MODULES and hook.kind != "kprobe" else None

    choice = on(answer)
    assert choice.sync["ext4"].kind == "kprobe" and choice.sync["bdev"].kind == "fentry"
    assert choice.passed_over_summary() == (
        "fentry not available for ext4 xfs btrfs; tp_btf not available for ext4"
    )


def test_a_kernel_that_refuses_functions_leaves_system_calls(on: Callable[..., Choice]) -> None:
    choice = on(of({"fentry": REFUSED, "kprobe": ABSENT}, F2FS))
    assert choice.filesystems == ["ext4"] and choice.syscalls
    assert choice.passed_over_summary() == (
        "fentry refused for ext4 xfs btrfs bdev syncfs (not permitted);"
        " kprobe not available for xfs btrfs bdev syncfs"
    )
    assert "O_DSYNC and msync on bdev" in choice.misses


def test_system_calls_are_watched_for_filesystems_that_are_mounted(
    on: Callable[..., Choice],
) -> None:
    kernel = of({"fentry": REFUSED, "kprobe": ABSENT}, F2FS)
    choice = on(kernel, mounted={"ext4", "vfat", "proc"})
    assert list(choice.sync) == ["ext4"] and not choice.syscalls
    assert choice.misses == [
        "fsync on filesystems other than ext4", "fsync on block devices", "syncfs"
    ]  # fmt: skip
    assert on(kernel, mounted={"ext4", "xfs"}).syscalls == on(kernel).syscalls
    # Asked for by name, they are watched.
    assert on(kernel, SYSCALL, mounted={"ext4"}).syscalls


def test_where_no_known_filesystem_is_system_calls_are_watched(on: Callable[..., Choice]) -> None:
    """ZFS alone, say: block devices and syncfs have hooks, and files have none."""
    gone = dict.fromkeys((*MODULES, *F2FS), ABSENT)
    assert on(of({}, gone)).syscalls == [hooks.SYSCALLS]
    gone["sys_enter/sys_exit"] = REFUSED
    choice = on(of({}, gone))
    assert not choice.syscalls and "fsync on all filesystems" in choice.misses


@pytest.mark.parametrize("tier", ["fentry", "tp_btf", "kprobe"])
def test_a_tier_that_shows_no_filesystem_is_an_error(on: Callable[..., Choice], tier: str) -> None:
    gone = dict.fromkeys((*MODULES, *F2FS), ABSENT)
    with pytest.raises(OSError, match=f"no hook on fsync: {tier} not there; try --fsync-hook auto"):
        on(of({}, gone), tier)


def test_a_tier_alone_says_what_it_misses(on: Callable[..., Choice]) -> None:
    choice = on(of({}, F2FS), "tp_btf")
    assert list(choice.sync) == ["ext4"]
    assert choice.misses == ["fsync on filesystems other than ext4", "syncfs"]
    choice = on(of({}, F2FS), SYSCALL)
    assert not choice.sync and choice.syscalls[0] is hooks.SYSCALLS
    unseen: List[str] = [miss for miss in choice.misses if miss.startswith("O_DSYNC")]
    assert unseen == ["O_DSYNC and msync on ext4, f2fs, bdev"]
