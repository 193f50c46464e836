# SPDX-License-Identifier: GPL-2.0-or-later
"""The collector: tools that misbehave, and the file that it leaves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Dict, Tuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import raid_cases as cases
from fake_sysfs import FakeSysfs
from raid_host import EXAMPLE, ME, answering, bin_dir, program, soon, tree
from writebackd.storage import collector, raid_tools, report_file, ssacli
from writebackd.storage.collector import collect
from writebackd.storage.report_file import Tool
from writebackd.storage.tool_output import ToolError, Volume
from writebackd.types.storage import ArrayWork, CacheMode, Protection

__all__ = ["bin_dir", "tree"]  # fixtures


def collected(tree: FakeSysfs, bin_dir: Path, limit_s: float = 10.0) -> Dict[str, Tool]:
    found = collect(tree.files, limit_s, [str(bin_dir)], bin_dir.parent)
    return {tool.name: tool for tool in found.tools}


def test_every_tool_that_is_there_is_asked(tree: FakeSysfs, bin_dir: Path) -> None:
    answers = {
        "all": cases.storcli_all(), "rebuild": cases.REBUILD, "cc": cases.CHECK,
        "patrolread": cases.PATROL,
    }  # fmt: skip
    program(bin_dir, "storcli64", answering(**answers))
    # The same controllers again: not asked.
    program(bin_dir, "perccli64", "open(sys.argv[0] + '.ran', 'w')")
    program(bin_dir, "MegaCli64", "open(sys.argv[0] + '.ran', 'w')")
    program(bin_dir, "ssacli", answering(detail=cases.ssacli()))
    program(bin_dir, "arcconf", answering(getconfig=cases.arcconf(), getstatus=cases.ARCCONF_TASK))
    found = collected(tree, bin_dir)
    assert {name: (tool.error, len(tool.controllers)) for name, tool in found.items()} == {
        "storcli": (None, 1), "ssacli": (None, 1), "arcconf": (None, 1)
    }  # fmt: skip
    # Of VD 238 no drive is being rebuilt by its own state, but the tool counts one.
    assert found["storcli"].controllers[0].volumes[0].works == (ArrayWork("rebuild", 0.37),)
    assert found["arcconf"].controllers[0].volumes[1].works == (ArrayWork("rebuild", 0.44),)
    assert not list(bin_dir.glob("*.ran"))


def test_megacli_is_asked_where_storcli_sees_nothing(tree: FakeSysfs, bin_dir: Path) -> None:
    program(bin_dir, "storcli64", answering(all=cases.NO_CONTROLLER))
    program(bin_dir, "MegaCli64", answering(**{"-AdpBbuCmd": cases.megacli_battery()}))
    found = collected(tree, bin_dir)
    assert found["storcli"].controllers == ()
    assert found["megacli"].controllers[0].protection is Protection.OK


@pytest.mark.parametrize("first, others", [("storcli64", ("perccli64", "MegaCli64")),
                                           ("perccli64", ("MegaCli64",))])  # fmt: skip
def test_where_one_hangs_its_like_are_not_asked(
    first: str, others: Tuple[str, ...], tree: FakeSysfs, bin_dir: Path
) -> None:
    program(bin_dir, first, "time.sleep(600)")
    for name in others:
        program(bin_dir, name, "open(sys.argv[0] + '.ran', 'w')")
    program(bin_dir, "ssacli", answering(detail=cases.ssacli()))
    found = collected(tree, bin_dir, limit_s=0.7)
    assert sorted(found) == sorted([first[:-2], "ssacli"]) and not list(bin_dir.glob("*.ran"))
    assert found["ssacli"].error is None
    # What failed otherwise tells nothing of the controller.
    program(bin_dir, first, "sys.exit(7)")
    collected(tree, bin_dir)
    assert sorted(bin_dir.glob("*.ran")) == sorted(bin_dir / f"{name}.ran" for name in others)


@pytest.mark.parametrize("hangs, count, asked", [
    (("getstatus", "1"), 1, "11"), (("getstatus", "2"), 2, "1122"), (("getconfig", "2"), 1, "112"),
    (("getstatus", "9"), 3, "112233"),
])  # fmt: skip
def test_arcconf_is_asked_until_a_controller_hangs(
    hangs: Tuple[str, str], count: int, asked: str, tree: FakeSysfs, bin_dir: Path
) -> None:
    config = cases.arcconf().replace("found: 1", "found: 3")
    program(
        bin_dir, "arcconf",
        f"open({str(bin_dir / 'asked')!r}, 'a').write(sys.argv[2])\n"
        f"if tuple(sys.argv[1:]) == {hangs!r}: time.sleep(600)\n"
        f"if sys.argv[1] == 'getconfig': print({config!r})\n"
        "else: sys.exit(5)",
    )  # fmt: skip
    found = collected(tree, bin_dir, limit_s=0.7)["arcconf"]
    assert (found.error, len(found.controllers)) == (None, count)
    assert found.controllers[0].protection is Protection.OK
    assert (bin_dir / "asked").read_text() == asked


def test_a_parser_that_falls_over_costs_its_tool_alone(
    tree: FakeSysfs, bin_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(outputs: Any) -> Any:
        raise KeyError("\x1b[2J" + "x" * 999)

    monkeypatch.setattr(ssacli, "parse", broken)
    program(bin_dir, "ssacli", answering(detail=cases.ssacli()))
    program(bin_dir, "arcconf", answering(getconfig=cases.arcconf()))
    whole = collect(tree.files, 10.0, [str(bin_dir)], bin_dir.parent)
    found = {tool.name: tool for tool in whole.tools}
    error = found["ssacli"].error
    assert error is not None and error.startswith("cannot parse its output: KeyError: ")
    assert found["arcconf"].error is None and found["arcconf"].controllers
    assert report_file.decode(report_file.encode(whole)) == whole


def test_a_hung_tool_is_killed_with_what_it_started(tree: FakeSysfs, bin_dir: Path) -> None:
    pids = bin_dir / "pids"
    program(
        bin_dir, "ssacli",
        f"child = os.fork()\nopen({str(pids)!r}, 'a').write(f'{{os.getpid()}}\\n')\n"
        "print('half', flush=True)\ntime.sleep(600)",
    )  # fmt: skip
    program(bin_dir, "arcconf", answering(getconfig=cases.arcconf()))
    begun = time.monotonic()
    found = collected(tree, bin_dir, limit_s=0.7)
    assert time.monotonic() - begun < 5.0
    assert found["ssacli"].error == "not done within 0.7 s"
    assert found["arcconf"].error is None
    soon(lambda: not any(map(_lives, pids.read_text().split())))


def _lives(pid: str) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def test_a_tool_that_hangs_later_keeps_what_it_said(tree: FakeSysfs, bin_dir: Path) -> None:
    asked = bin_dir / "asked"
    text = (
        f"open({str(asked)!r}, 'a').write('?')\n"
        f"if 'all' in sys.argv: print({cases.storcli_all()!r})\nelse: time.sleep(600)"
    )
    program(bin_dir, "storcli64", text)
    found = collected(tree, bin_dir, limit_s=0.7)
    assert asked.read_text() == "??"  # the others would hang as well
    assert found["storcli"].error is None
    assert found["storcli"].controllers[0].protection is Protection.OK


@pytest.mark.parametrize("text, error", [
    ("sys.exit(7)", "printed nothing, exit code 7"),
    ("sys.exit('no libncurses.so.5\\nx')", "printed nothing, exit code 1: no libncurses.so.5"),
    ("print('Controller not present')", "Controller not present"),
    ("os.kill(os.getpid(), 11)", "printed nothing, exit code -11"),
    ("print('segmentation fault')", "no controller in it"),
    ("sys.stdout.buffer.write(bytes(range(256)) * 40)", "no text, at byte 128"),
    ("while True: os.write(1, b'x' * 65536)", "more than 8 MB"),
    ("import sys\nfor _ in range(1600): os.write(1, b'x' * 65536)", "more than 8 MB"),
])  # fmt: skip
def test_a_tool_that_makes_no_sense(text: str, error: str, tree: FakeSysfs, bin_dir: Path) -> None:
    program(bin_dir, "ssacli", text)
    assert collected(tree, bin_dir)["ssacli"].error == error


def test_a_tool_whose_loader_is_missing(tree: FakeSysfs, bin_dir: Path) -> None:
    path = program(bin_dir, "ssacli", "")
    path.write_text("#!/lib/none.so\n")
    assert "loader is missing" in (collected(tree, bin_dir)["ssacli"].error or "")


def test_much_on_standard_error_holds_nothing_up(bin_dir: Path) -> None:
    path = program(bin_dir, "tool", "os.write(2, b'x' * 300000); print('done')")
    assert raid_tools.run([str(path)], "/", 10.0) == "done\n"


def test_garbage_on_the_exit_code_is_no_reason(tree: FakeSysfs, bin_dir: Path) -> None:
    program(bin_dir, "ssacli", answering(detail=cases.ssacli()) + "\nsys.exit(1)")
    assert collected(tree, bin_dir)["ssacli"].error is None


def test_output_that_outlives_the_tool_is_not_waited_for(bin_dir: Path) -> None:
    path = program(bin_dir, "tool", "print('done', flush=True)\nif not os.fork(): time.sleep(600)")
    begun = time.monotonic()
    with pytest.raises(ToolError, match="not done"):
        raid_tools.run([str(path)], "/", 0.5)
    assert time.monotonic() - begun < 3.0


def test_a_program_that_others_may_write_is_not_run(tree: FakeSysfs, bin_dir: Path) -> None:
    path = program(bin_dir, "ssacli", answering(detail=cases.ssacli()))
    path.chmod(0o777)
    (found,) = collected(tree, bin_dir).values()
    assert (found.error or "").startswith(f"not run: others than root may write {path}: chmod go-w")
    path.chmod(0o644)
    assert collected(tree, bin_dir) == {}
    path.chmod(0o755)
    assert list(collected(tree, bin_dir)) == ["ssacli"]


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o1777])
def test_a_program_that_others_may_replace_is_not_run(
    mode: int, tree: FakeSysfs, bin_dir: Path
) -> None:
    vendor = bin_dir / "vendor"
    real = vendor / "bin" / "tool"
    real.parent.mkdir(parents=True)
    program(real.parent, "tool", answering(detail=cases.ssacli()))
    (bin_dir / "ssacli").symlink_to("vendor/bin/tool")
    for directory in (vendor, real.parent, bin_dir):
        for each in (vendor, real.parent, bin_dir):
            each.chmod(0o755)
        # What is run is what was looked at, whatever becomes of the link.
        assert collected(tree, bin_dir)["ssacli"].path == str(real)
        directory.chmod(mode)
        assert collected(tree, bin_dir)["ssacli"].controllers == (), directory


def test_a_program_below_somebody_elses_directory_is_not_run(
    tree: FakeSysfs, bin_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(bin_dir, "ssacli", "")
    (kind,) = (each for each in raid_tools.kinds(tree.files) if each.name == "ssacli")
    assert raid_tools.find(kind, [str(bin_dir)], bin_dir.parent) == bin_dir / "ssacli"
    bin_dir.parent.chmod(0o1777)
    assert raid_tools.find(kind, [str(bin_dir)], bin_dir) == bin_dir / "ssacli"
    assert raid_tools.find(kind, [str(bin_dir)], bin_dir.parent) is None
    assert raid_tools.find(kind, [str(bin_dir)]) is None
    bin_dir.parent.chmod(0o700)
    (bin_dir / "hpssacli").symlink_to("hpssacli")
    assert raid_tools.find(kind, [str(bin_dir)], bin_dir.parent) == bin_dir / "ssacli"
    (bin_dir / "ssacli").unlink()
    assert raid_tools.find(kind, [str(bin_dir)], bin_dir.parent) is None  # links in a circle
    program(bin_dir, "ssacli", "")
    owner = os.stat(bin_dir).st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    found = raid_tools.find(kind, [str(bin_dir)], bin_dir.parent)
    assert found == (bin_dir / "ssacli" if owner == 0 else None)
    if owner == 0:
        os.chown(bin_dir, 65534, -1)
        assert raid_tools.find(kind, [str(bin_dir)], bin_dir.parent) is None


def test_tools_leave_their_logs_where_they_are_removed(tree: FakeSysfs, bin_dir: Path) -> None:
    program(bin_dir, "ssacli", f"open('tool.log', 'w')\nopen({str(bin_dir / 'cwd')!r}, 'w')"
                               ".write(os.getcwd())")  # fmt: skip
    collected(tree, bin_dir)
    assert not Path((bin_dir / "cwd").read_text()).exists()


def test_device_mapper_is_asked_where_it_has_devices(tree: FakeSysfs, bin_dir: Path) -> None:
    table, status = cases.WRITECACHE
    program(bin_dir, "dmsetup", f"writes = 'writecache' in sys.argv\n"
            f"print((({table!r} if 'table' in sys.argv else {status!r})) if writes else '')")
    assert collected(tree, bin_dir)["dm-writecache"].controllers == ()
    tree.disk("dm-3", "253:3")
    tree.says("dm-3", dm__name="fast one")
    found = collected(tree, bin_dir)
    assert found["dm-writecache"].controllers[0].volumes == (
        Volume(disk="dm-3", mode=CacheMode.WRITE_BACK),
    )
    assert found["dm-cache"].controllers == ()


# As with -m, but for what is trusted.
MAIN = """
import sys
from pathlib import Path
from writebackd.storage.collector import main
sys.exit(main(sys.argv[2:], Path(sys.argv[1])))
"""


def test_what_waits_for_a_disk_in_the_kernel_is_left_out(
    tree: FakeSysfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = threading.Event()
    monkeypatch.setattr(raid_tools, "LIMIT_S", 0.05)
    monkeypatch.setattr(
        "writebackd.storage.linux_storage.read_bcache", lambda files: ()[disk.wait(5) :]
    )
    assert collector.with_kernel(EXAMPLE, tree.files) == EXAMPLE
    disk.set()


def test_the_program_leaves_its_file(tmp_path: Path, bin_dir: Path) -> None:
    program(bin_dir, "ssacli", answering(detail=cases.ssacli()))
    output = tmp_path / "raid.json"
    done = subprocess.run(
        [sys.executable, "-c", MAIN, str(tmp_path), "--output", str(output)],
        env={**os.environ, "PATH": str(bin_dir)}, stderr=subprocess.PIPE, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"ssacli ({bin_dir / 'ssacli'}): 1 controllers or caches" in done.stderr
    found = report_file.read(output, ME)
    assert found.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert [each.name for each in found.tools if each.controllers] == ["ssacli"]
    assert [path.name for path in tmp_path.iterdir() if path.name != "bin"] == ["raid.json"]
    nowhere = [sys.executable, "-m", "writebackd.storage.collector", "--output", "/proc/raid.json"]
    done = subprocess.run(
        nowhere, env={**os.environ, "PATH": ""}, stderr=subprocess.PIPE, text=True, timeout=60
    )
    assert done.returncode == 1 and "/proc/raid.json" in done.stderr


# ---- the file ----------------------------------------------------------------


def test_the_file_reads_back_as_it_was_written(tmp_path: Path) -> None:
    report_file.write(EXAMPLE, tmp_path / "raid.json")
    assert report_file.read(tmp_path / "raid.json", ME) == EXAMPLE
    assert os.stat(tmp_path / "raid.json").st_mode & 0o777 == 0o644
    assert len(list(tmp_path.iterdir())) == 1


def test_a_file_of_others_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "raid.json"
    report_file.write(EXAMPLE, path)
    with pytest.raises(ToolError, match="only one who may write"):
        report_file.read(path, ME + 1)
    path.chmod(0o664)
    with pytest.raises(ToolError, match="only one who may write"):
        report_file.read(path, ME)
    path.chmod(0o644)
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(OSError):
        report_file.read(tmp_path / "link", ME)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(ToolError, match="no file"):
        report_file.read(tmp_path / "fifo", ME)


def changed(**fields: Any) -> bytes:
    return json.dumps({**json.loads(report_file.encode(EXAMPLE)), **fields}).encode()


@pytest.mark.parametrize("data, error", [
    (b"", "no JSON"), (b"\xff", "no text"), (b"[]", "not of version 1"),
    (b"{}" + b" " * report_file.MOST_FILE, "more than 1024 KB"), (b"[" * 9999, "too deep"),
    (changed(version=2), "not of version 1"), (changed(tools=None), "tools: no list"),
    (changed(tools=[7]), "tools: no object"),
    (changed(tools=[{"name": "x"}]), "tools: without path"),
    (changed(wall_s=-1), "wall_s: -1 is impossible"), (changed(wall_s="1"), "no float"),
    (changed(wall_s=True), "no float"),
    (changed(wall_s=0).replace(b'"wall_s": 0', b'"wall_s": 1e999'), "inf is impossible"),
    (changed(boot_id="x" * 999), "boot_id: no str"),
    (changed(tools=[{"name": "x", "path": "y", "controllers": [{"capacity_bytes": 1.5}]}]),
     "capacity_bytes: no int"),
    (changed(tools=[{"name": "x", "path": "y", "controllers": [{"protection": "fine"}]}]),
     "protection: 'fine' is not a valid"),
])  # fmt: skip
def test_a_file_that_is_wrong_is_refused_with_the_place(data: bytes, error: str) -> None:
    with pytest.raises(ToolError, match=error):
        report_file.decode(data)


def test_what_a_later_release_adds_is_passed_over() -> None:
    assert report_file.decode(changed(more={"x": [1]})) == EXAMPLE


def test_names_cannot_steer_a_terminal() -> None:
    found = report_file.decode(changed(release="1\x1b[2J"))
    assert found.release == "1?[2J"


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_damaged_file_is_refused_or_read(data: Any) -> None:
    whole = bytearray(report_file.encode(EXAMPLE))
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(whole) - 1))
        whole[at] = data.draw(st.integers(0, 255))
    try:
        found = report_file.decode(bytes(whole[: data.draw(st.integers(1, len(whole)))]))
    except ToolError:
        return
    assert report_file.decode(report_file.encode(found)) == found
