# SPDX-License-Identifier: GPL-2.0-or-later
"""Man pages, completions and examples say what the program does, all of it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, Iterator, List, NoReturn, cast

import pytest

from checkout import ROOT
from figure_cases import days
from test_cli import FakeDaemon
from writebackd.actuate import watcher
from writebackd.cli import ctl, lease_watcher, run_verb
from writebackd.cli.daemon_main import parser as daemon_parser
from writebackd.cli.examples import EXAMPLES
from writebackd.cli.exit_codes import CommandError
from writebackd.paths import CACHES, RAID, SAMPLES
from writebackd.policy import check, load_policy
from writebackd.policy.keys import KEYS
from writebackd.report.history_schema import Event
from writebackd.report.history_store import History
from writebackd.types.storage import Device

sys.path.append(str(ROOT / "docs" / "man"))
sys.path.append(str(ROOT))
import commands
import completions
import generate
import pages
from tests.lab import bench, demo

VERBS = [each for each in commands.writebackctl().all() if each.words]
# What a newcomer is told to type.
FRONT = (ROOT / "README.md").read_text() + (ROOT / "CONTRIBUTING.md").read_text()
INSTALL = (ROOT / "docs/howto/install.md").read_text()


@pytest.fixture(scope="module")
def share(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("share")
    for name, text in generate.files().items():
        put(target, name, text)
    return target


def formatted(path: Path) -> "subprocess.CompletedProcess[str]":
    if shutil.which("man") is None:
        pytest.skip("man is missing: apt-get install man-db")
    environ = {**os.environ, "MANWIDTH": "2000", "LC_ALL": "C.UTF-8"}
    return subprocess.run(
        ["man", "--warnings", "-E", "UTF-8", "-P", "cat", "-l", str(path)],
        capture_output=True, text=True, env=environ, timeout=60, check=True,
    )  # fmt: skip


PAGES = ["man/man1/writebackctl.1", "man/man8/writebackd.8", "man/man5/writebackd.conf.5",
         "man/man8/writebackd-raid.8"]


@pytest.mark.parametrize("name", PAGES)
def test_man_has_nothing_to_complain_about(share: Path, name: str) -> None:
    assert formatted(share / name).stderr == ""


def test_the_pages_name_every_verb_option_and_key(share: Path) -> None:
    one, eight, five, raid = (formatted(share / name).stdout for name in PAGES)
    for each in VERBS:
        assert re.search(rf"(?m)^   {re.escape(each.name)}$", one), each.name
        assert each.summary.rstrip(".").replace("`", "")[1:] in one
        for flag in (flag for option in each.options for flag in option.flags):
            assert flag in one, (each.name, flag)
    for option in commands.writebackd().options:
        assert all(flag in eight for flag in option.flags), option
    for option in commands.writebackd_raid().options:
        assert all(flag in raid for flag in option.flags), option
    listed = re.split(r"(?m)^FILES$", raid)[1]
    assert RAID in listed and CACHES in listed
    for key in KEYS:
        assert re.search(rf"(?m)^       {key.name} \(.*default", five), key.name


def test_the_manual_has_every_option_of_every_verb() -> None:
    sections = re.split(r"(?m)^### ", (ROOT / "docs/reference/commands.md").read_text())[1:]
    for each in VERBS:
        heading = re.compile(rf"`{each.words[0]}\b")
        (section,) = [text for text in sections if heading.match(text)]
        for option in each.options:
            for flag in option.flags:
                if flag not in ("-h", *pages._COMMON):
                    assert re.search(rf"(?<![\w-]){flag}(?![\w-])", section), (each.name, flag)


def test_every_option_and_argument_is_explained() -> None:
    programs = (commands.writebackctl(), commands.writebackd(), commands.writebackd_raid())
    for each in (*VERBS, *programs):
        for option in each.options:
            assert option.help, (each.name, option.flags)
        for argument in each.arguments:
            assert argument.help, (each.name, argument.name)


def test_the_help_of_every_verb_has_examples(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert set(EXAMPLES) == {each.name for each in VERBS}
    for each in VERBS:
        with pytest.raises(SystemExit):
            ctl.main([*each.words, "--help"])
        out = capsys.readouterr().out
        assert "examples:\n" in out
        assert EXAMPLES[each.name][0][0] in out
        assert max(map(len, out.splitlines())) <= 80


# ---- completions -------------------------------------------------------

COMPLETE = """
source "$1"; shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
"_$1"
printf '%s\\n' "${COMPREPLY[@]}"
"""


def completed(share: Path, *words: str) -> List[str]:
    script = share / "bash-completion" / "completions" / words[0]
    result = subprocess.run(
        ["bash", "-euc", COMPLETE, "bash", str(script), *words],
        capture_output=True, text=True, cwd=share, timeout=20, check=False,
    )  # fmt: skip
    assert result.stderr == ""
    return result.stdout.split("\n")[:-1]


def test_bash_completes_every_verb_and_option(share: Path) -> None:
    first = completed(share, "writebackctl", "")
    assert set(first) == {each.words[0] for each in VERBS}
    for each in VERBS:
        flags = {flag for option in each.options for flag in option.flags if flag[:2] == "--"}
        offered = completed(share, "writebackctl", "--json", *each.words, "--")
        assert set(offered) >= flags, each.name
    for program, command in completions.WITHOUT_VERBS.items():
        flags = {flag for each in command().options for flag in each.flags}
        assert set(completed(share, program, "-")) == flags


def test_bash_completes_values(share: Path) -> None:
    assert completed(share, "writebackctl", "policy", "s") == ["show"]
    assert completed(share, "writebackctl", "--runtime-dir", "/ru", "wh")[:1] == ["why"]
    assert set(completed(share, "writebackd", "--mode", "")) == {"enforce", "observe"}
    assert "1h" in completed(share, "writebackctl", "history", "--since", "1")
    # As bash splits --option=value.
    assert completed(share, "writebackd", "--probe", "=", "l") == ["libbpf"]
    assert set(completed(share, "writebackd", "--mode", "=")) == {"enforce", "observe"}
    assert "1h" in completed(share, "writebackctl", "history", "--since", "=")
    assert completed(share, "writebackctl", "--runtime-dir", "=", "/run", "wh") == ["why"]
    # What follows the command of `run` is not ours: no verb, no option.
    assert completed(share, "writebackctl", "run", "--", "ls", "--js") == []
    assert "bash" in completed(share, "writebackctl", "run", "--", "bas")


def elsewhere(share: Path, tmp_path: Path, system: str, here: str) -> None:
    """The scripts, with directories of the test's in place of the system's."""
    for program in ("writebackctl", "writebackd"):
        name = f"bash-completion/completions/{program}"
        text = (share / name).read_text()
        assert system in text
        put(tmp_path, name, text.replace(system, f"{tmp_path}/{here}"))


def put(root: Path, name: str, text: str = "") -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_bash_completes_devices_that_exist(share: Path, tmp_path: Path) -> None:
    """A loop device without a file is in /sys/block as well."""
    elsewhere(share, tmp_path, "/sys/block/", "block/")
    for disk, size in (("sda", 1000), ("dm-0", 8), ("loop0", 0)):
        put(tmp_path, f"block/{disk}/size", f"{size}\n")
    for program, words in (("writebackctl", ["why"]), ("writebackd", ["--device"])):
        assert set(completed(tmp_path, program, *words, "")) == {"sda", "dm-0"}
        assert completed(tmp_path, program, *words, "s") == ["sda"]


TAKES_A_POLICY = (
    ("writebackctl", "policy", "show"), ("writebackctl", "policy", "check"),
    ("writebackctl", "policy", "check", "--config-dir", "x"), ("writebackd", "--policy"),
    ("writebackctl", "replay", "--policy"), ("writebackctl", "--json", "replay", "--policy"),
)  # fmt: skip


def test_bash_completes_names_of_policies(share: Path, tmp_path: Path) -> None:
    elsewhere(share, tmp_path, "{/usr/lib,/run,/etc}/writebackd", "{lib,run,etc}")
    for name in ("lib/policies.d/etcd.conf", "lib/policies.d/default.conf",
                 "etc/policies.d/etcd.conf", "etc/policies.d/etcd.conf.d/50-site.conf",
                 "run/policies.d/mine.conf"):  # fmt: skip
        put(tmp_path, name)
    for words in TAKES_A_POLICY:
        offered = set(completed(tmp_path, *words, ""))
        assert offered >= {"etcd", "default", "mine"}, words
        # With .conf at its end it would be a file of the working directory.
        assert not [each for each in offered if each.endswith(".conf")], (words, offered)
        # A file is one as well; here the directory etc, whose name begins so.
        assert set(completed(tmp_path, *words, "etc")) == {"etcd", "etc"}, words
    assert "etcd" not in completed(tmp_path, "writebackctl", "report", "--output", "")


def test_every_place_for_a_policy_is_completed_with_names() -> None:
    found = {
        ("writebackctl", *each.words) for each in VERBS
        if any(argument.name == "NAME|FILE" for argument in each.arguments)
    } | {
        (program, *each.words, option.flags[-1])
        for program, commands_ in (("writebackctl", VERBS), ("writebackd", [commands.writebackd()]))
        for each in commands_ for option in each.options if option.flags[-1] == "--policy"
        if option.value == "NAME|FILE"
    }  # fmt: skip
    assert found == {
        each for each in TAKES_A_POLICY if "--json" not in each and "--config-dir" not in each
    }


def test_zsh_knows_every_verb_and_option(share: Path) -> None:
    script = share / "zsh/site-functions/_writebackctl"
    text = script.read_text()
    assert text.startswith("#compdef writebackctl writebackd writebackd-raid\n")
    functions: Dict[str, str] = dict(re.findall(r"(?ms)^([\w-]+)\(\) \{\n(.*?)^\}", text))
    for each in VERBS:
        body = functions["_writebackctl_" + "_".join(each.words)]
        for option in each.options:
            assert f"'{option.flags[-1]}[" in body, (each.name, option.flags)
    for program, command in completions.WITHOUT_VERBS.items():
        for option in command().options:
            assert f"'{option.flags[-1]}[" in functions[f"_{program}"]
    # Names without .conf: with it, a word is a file of the working directory to the programs.
    places = re.findall(r":NAME\|FILE:(.*)'", text)
    assert len(places) == 4 and set(places) == {"_writebackd_policies"}
    assert "/*.conf(N:t:r))" in functions["_writebackd_policies"]
    # zsh calls the file by this name for either program: nothing in it may take its place.
    assert "_writebackctl" not in functions
    assert text.count("'") % 2 == 0 or "'\\''" in text
    if shutil.which("zsh"):
        assert subprocess.run(["zsh", "-n", str(script)], check=False).returncode == 0


def fish(share: Path, line: str) -> List[str]:
    """What it offers for a line, without descriptions."""
    if shutil.which("fish") is None:
        pytest.skip("fish is missing: apt-get install fish")
    script = share / f"fish/vendor_completions.d/{line.split()[0]}.fish"
    result = subprocess.run(
        ["fish", "--no-config", "-c", 'source $argv[1]; complete -C "$argv[2]"', str(script), line],
        capture_output=True, text=True, cwd=share, timeout=20, check=False,
    )  # fmt: skip
    assert result.stderr == ""
    return [each.split("\t")[0] for each in result.stdout.splitlines()]


def test_fish_completes_every_verb_and_option(share: Path) -> None:
    assert set(fish(share, "writebackctl ")) == {each.words[0] for each in VERBS}
    assert set(fish(share, "writebackctl policy ")) == {"list", "show", "check", "match"}
    for each in VERBS:
        flags = {flag for option in each.options for flag in option.flags if flag[:2] == "--"}
        # What an option takes is no verb.
        assert set(fish(share, f"writebackctl --runtime-dir why {each.name} --")) == flags, each
    for program, command in completions.WITHOUT_VERBS.items():
        flags = {flag for option in command().options for flag in option.flags}
        assert set(fish(share, f"{program} --")) == {flag for flag in flags if flag[:2] == "--"}


def test_fish_completes_values(share: Path, tmp_path: Path) -> None:
    assert set(fish(share, "writebackd --mode ")) == {"enforce", "observe"}
    assert fish(share, "writebackctl history --since 1h") == ["1h"]
    assert "bash" in fish(share, "writebackctl run -- bas")
    name = "fish/vendor_completions.d/writebackctl.fish"
    text = (share / name).read_text()
    for system, here in (("/sys/block/", "block/"),
                         ("{/usr/lib,/run,/etc}/writebackd", "{lib,run,etc}")):
        assert system in text
        text = text.replace(system, f"{tmp_path}/{here}")
    put(tmp_path, name, text)
    put(tmp_path, "etc/policies.d/mine.conf")
    for disk, size in (("sda", 1000), ("loop0", 0)):
        put(tmp_path, f"block/{disk}/size", f"{size}\n")
    assert fish(tmp_path, "writebackctl why ") == ["sda"]
    assert "mine" in fish(tmp_path, "writebackctl policy show mi")


# ---- examples ----------------------------------------------------------


class Replaced(Exception):
    """Instead of exec(): this process has to go on."""


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDaemon]:
    """One that answers, with a history and samples, on a host with systemd and rsync."""
    history = History(tmp_path / "history.db")
    history.record(Event(1_717_200_000.0, "mode", text="observe"))
    for each in days(time.time() - 3 * 86_400.0):
        history.record_figures((each,))
    assert history.close(5.0)
    (tmp_path / SAMPLES).mkdir()
    shutil.copy(ROOT / "tests/unit/flood.tape", tmp_path / SAMPLES / "001700000000000.tape")
    (tmp_path / "site.conf").write_text("[policy]\nmode = observe\n")  # about to be installed
    monkeypatch.chdir(tmp_path)  # where pages are written
    fake = FakeDaemon(tmp_path)
    fake.snapshot = replace(fake.snapshot, state_dir=str(tmp_path))
    for name in ("systemd-run", "rsync", "sync"):
        put(tmp_path, name, "#!/bin/sh\n").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(run_verb, "SYSTEMD", str(tmp_path))

    def replaced(*words: object) -> NoReturn:
        raise Replaced

    monkeypatch.setattr(os, "execvp", replaced)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(lease_watcher, "run", lambda *args, **more: 0)
    monkeypatch.setattr("writebackd.cli.drain_verb._ASK_S", 0.02)
    disk = Device("sda", "8:0", "8:0")
    for name, answer in (("device_of", disk), ("check_room", None), ("_CalibrationRun.run", 0)):
        monkeypatch.setattr(f"writebackd.cli.calibrate.{name}", lambda *_, it=answer: it)
    monkeypatch.setattr("writebackd.cli.recommend.scan", lambda _: (disk,))
    monkeypatch.setattr("writebackd.cli.top.time.sleep", lambda seconds: None)
    yield fake
    fake.stop()


def in_readme() -> List[str]:
    lines = [line.split("  #")[0].strip() for line in FRONT.splitlines() if line[:4] == " " * 4]
    words = ("sudo ", "writebackctl ", "agent/", "tests/", "make ")
    return [line for line in lines if line.startswith(words)]


def in_prose() -> List[str]:
    """What is quoted there as a command, with all of its words."""
    found = re.findall(r"`((?:sudo )?writebackctl [^`]+)`", FRONT)
    return [text for text in found if "VERB" not in text]


def in_help(text: str) -> List[str]:
    """The commands of the examples at the end of a --help; what they are for stands apart."""
    lines = text.partition("examples:\n")[2].partition("\n\n")[0].splitlines()
    return [line.strip().split("   ")[0].split("  ")[0] for line in lines]


COMMANDS = sorted({command for each in EXAMPLES.values() for command, _ in each}
                  | {c for c in (*in_readme(), *in_prose()) if "writebackctl" in c}
                  | set(in_help(ctl._parser().format_help())))  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_examples_run(
    daemon: FakeDaemon, tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    words = shlex.split(command)
    words = words[1:] if words[0] == "sudo" else words
    assert words[0] == "writebackctl"
    if "top" not in words:
        for name in ("psutil", "pyroute2", "rich"):  # a host may lack them
            monkeypatch.setitem(cast(Any, sys.modules), name, None)
    try:
        code = ctl.main(["--runtime-dir", str(tmp_path), *words[1:]])
    except Replaced:
        code = 0
    captured = capsys.readouterr()
    if "doctor" in words:  # has bad news on many a host that tests run on
        assert captured.out
    else:
        assert (code, captured.err) == (0, ""), captured


def test_other_commands_of_the_readme_exist() -> None:
    others = [line for line in in_readme() if "writebackctl" not in line]
    assert len(others) >= 6
    makefile = (ROOT / "Makefile").read_text()
    for line in others:
        words = shlex.split(line)
        words = words[1:] if words[0] == "sudo" else words
        if words[0] == "make":
            assert re.search(rf"(?m)^{words[1]}:", makefile), line
        elif words[0] == "systemctl":
            assert words[1] == "enable" and (ROOT / f"systemd/{words[-1]}.service").exists(), line
        elif words[0] in ("apt", "dnf"):
            assert words[1] == "install", line
        elif words[0] == "writebackd":
            daemon_parser().parse_args(words[1:])
        else:
            assert os.access(ROOT / words[0], os.X_OK), line


def test_examples_of_the_daemon_are_taken() -> None:
    examples = re.findall(r"sudo (writebackd [^\"]+)", (ROOT / "docs/man/pages.py").read_text())
    of_help = in_help(daemon_parser().format_help())
    assert len(examples) >= 2 and len(of_help) >= 3
    for example in examples + of_help:
        assert example.startswith("writebackd")
        options = daemon_parser().parse_args(shlex.split(example)[1:])
        load_policy(options.policy, ROOT / "policies")


# A word in capitals or brackets stands for something: nothing to run.
PLACEHOLDER = re.compile(r"(?:^|[ =])(?:[A-Z]{3,}\b|\[|\.\.\.)|\|")
QUOTED = re.compile(r"`(?:sudo )?(writebackctl [^`]+)`|^    +(?:sudo )?(writebackctl [^#\n]*)",
                    re.MULTILINE)  # fmt: skip


@pytest.mark.parametrize(
    "name", ["README.md", "CONTRIBUTING.md",
             *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md"))),
             "docs/man/pages.py", "agent/writebackd/cli/doctor_checks.py",
             "systemd/writebackd.service",
             "systemd/writebackd.catalog"],
)  # fmt: skip
def test_what_is_quoted_as_a_command_is_one(name: str) -> None:
    """Those of the whole manual: not run, but taken by the parser."""
    for found in QUOTED.findall((ROOT / name).read_text()):
        command = re.sub(r"\s+", " ", "".join(found)).strip()
        if PLACEHOLDER.search(command) or command.endswith(":"):
            continue
        try:
            ctl._options(shlex.split(command)[1:])
        except (SystemExit, CommandError):
            pytest.fail(f"{name}: {command}")


STUB = """#!/bin/sh
echo "$(basename "$0") $*" >>{log}
"""


@pytest.fixture
def stubbed(tmp_path: Path) -> Path:
    """The scripts and the Makefile, in a tree whose tools only write down how they are called."""
    for name in ("agent/run", "tests/run", "tests/demo", "Makefile", ".ci/run"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    tools = [f"build/venv/bin/{name}"
             for name in ("python", "writebackd", "ruff", "mypy", "lint-imports")]  # fmt: skip
    for name in (*tools, "agent/setup.sh"):
        put(tmp_path, name, STUB.format(log=tmp_path / "log")).chmod(0o755)
    for name, text in (("sudo", 'exec "$@"'), ("id", "echo 0")):
        put(tmp_path, f"bin/{name}", f"#!/bin/sh\n{text}\n").chmod(0o755)
    return tmp_path


def called(tree: Path, command: str) -> List[str]:
    """How the tools of the tree are called by a command of the README, as it stands there."""
    assert command in in_readme() or f"`{command}`" in FRONT, command
    environ = {**os.environ, "PATH": f"{tree}/bin:{os.environ['PATH']}"}
    subprocess.run(
        ["sh", "-c", command], cwd=tree, env=environ, stdin=subprocess.DEVNULL, timeout=60,
        capture_output=True, check=False,
    )  # fmt: skip
    log = tree / "log"
    lines = log.read_text().splitlines() if log.exists() else []
    log.unlink(missing_ok=True)
    return lines


@pytest.mark.parametrize(
    "command, wanted",
    [("sudo agent/run", []), ("sudo agent/run --mode observe", ["--mode", "observe"])],
)
def test_agent_run_starts_the_daemon(stubbed: Path, command: str, wanted: List[str]) -> None:
    setup, daemon = called(stubbed, command)
    assert setup == "setup.sh run"
    words = daemon.split()
    assert words == ["writebackd", "--live", *wanted]
    daemon_parser().parse_args(words[1:])


PICTURES = "--svg docs/img/rescue.svg --top docs/img/top.svg --report docs/img/report.svg"


def test_the_demo_and_the_benchmark_are_started_as_they_say(
    stubbed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    setup, demo_call = called(stubbed, "sudo tests/demo")
    assert (setup, demo_call) == ("setup.sh lab", "python -m tests.lab.demo")
    taken: Dict[str, Any] = {}
    monkeypatch.setattr(demo, "demonstrate", lambda options: taken.update(vars(options)) or 0)
    assert demo.main(demo_call.split()[3:]) == 0
    for options, name, value in (("--svg docs/img/rescue.svg", "svg", "docs/img/rescue.svg"),
                                 (PICTURES, "report", "docs/img/report.svg"),
                                 ("--directory /srv", "directory", "/srv")):
        _, demo_call = called(stubbed, f"sudo tests/demo {options}")
        assert demo.main(demo_call.split()[3:]) == 0
        assert taken[name] == Path(value)
    setup, bench_call = called(stubbed, "sudo make bench QUICK=1")
    assert setup == "setup.sh bench" and bench_call.startswith("python -m tests.lab.bench ")
    assert bench.main([*bench_call.split()[3:], "--plan"]) == 0
    plan = capsys.readouterr().out
    assert "flood" in plan
    minutes = float(re.findall(r"([\d.]+) min", plan)[-1])
    (said,) = re.findall(r"other loads, in (\d+) minutes", FRONT)
    assert int(said) == pytest.approx(minutes, abs=2.5)


def test_the_readme_says_when_a_host_is_back_as_it_was() -> None:
    first, last = re.findall(r"restores\s+them\s+([\d.]+) to ([\d.]+) s after", FRONT)[0]
    lease_s = load_policy("default").limits.lease_s
    assert float(first) == lease_s
    assert float(last) == lease_s + watcher.BEAT_S + watcher._GRACE_S


LAYERS = ("setup.sh test", "ruff check .", "mypy ", "lint-imports --no-logo",
          "tests/sim", "tests/unit", "tests/kernel", "tests/vm",
          "python -m tests.bench.probe_cost", "python -m tests.bench.tick_cost")  # fmt: skip
ONLY_FULL = ("python -m tests.lab.demo", "python -m tests.lab.bench")


def test_tests_run_is_the_gate_the_full_suite_or_the_layer_that_is_named(stubbed: Path) -> None:
    gate, full = called(stubbed, "sudo tests/run"), called(stubbed, "sudo tests/run full")
    for wanted in (*LAYERS, *ONLY_FULL):
        assert any(wanted in line for line in full), (wanted, full)
        assert any(wanted in line for line in gate) == (wanted in LAYERS), (wanted, gate)
    tests = [line for line in gate if "pytest" in line]
    assert len(tests) == 4 and all("-m not full" in line for line in tests)
    assert not any("not full" in line for line in full)
    _, unit = called(stubbed, "tests/run unit")
    assert unit == (
        "python -m pytest -n auto --dist loadgroup --continue-on-collection-errors tests/unit"
    )


@pytest.mark.parametrize("layers", ["sim kernel", "kernel sim"])
def test_a_layer_that_fails_beside_another_fails_the_run(stubbed: Path, layers: str) -> None:
    fails = "#!/bin/sh\ncase $* in *tests/sim*) exit 3 ;; *tests/kernel*) sleep 0.3 ;; esac\n"
    put(stubbed, "build/venv/bin/python", fails)
    done = subprocess.run(["bash", "tests/run", *layers.split()], cwd=stubbed, timeout=60,
                          stdin=subprocess.DEVNULL, capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 1 and "\nfailed: sim\n" in done.stdout, done
    assert re.search(r"(?m)^kernel +\d+ s  passed$", done.stdout)
    assert re.search(r"(?m)^sim +\d+ s  FAILED$", done.stdout)


def test_make_check_takes_what_needs_no_root(stubbed: Path) -> None:
    setup, *layers = called(stubbed, "make check")
    assert setup == "setup.sh test"
    tools = [re.sub(r"^python -m pytest .*(?=tests/)", "", line) for line in layers]
    assert [tool.split()[0] for tool in tools] == ["ruff", "mypy", "lint-imports", "tests/unit"]


def test_make_clean_takes_what_was_built(stubbed: Path) -> None:
    probe = stubbed / "agent/writebackd/_bpf"
    probe.mkdir(parents=True)
    assert called(stubbed, "make clean") == []
    assert not probe.exists() and not (stubbed / "build").exists()


def test_the_unit_can_be_enabled(tmp_path: Path) -> None:
    assert "sudo systemctl enable --now writebackd" in in_readme()  # VMs start and stop it
    if shutil.which("systemctl") is None:
        pytest.skip("systemctl is missing: apt-get install systemd")
    units = tmp_path / "usr/lib/systemd/system"
    units.mkdir(parents=True)
    for path in (ROOT / "systemd").glob("*.service"):
        shutil.copy(path, units)
    subprocess.run(["systemctl", f"--root={tmp_path}", "enable", "writebackd"], check=True,
                   capture_output=True, timeout=20)  # fmt: skip
    link = tmp_path / "etc/systemd/system/multi-user.target.wants/writebackd.service"
    assert os.readlink(link) == "/usr/lib/systemd/system/writebackd.service"


# Where the rest of the README's commands are run: a phrase of the test that does it.
RUN_ELSEWHERE = {
    "make dist": ("vm/test_packages.py", 'run("make", "dist", cwd'),
    # These read the commands from the README.
    "sudo apt install ./writebackd_*_all.deb": (
        "vm/inside/package_life.py", "install, observe, _ = commands(readme, INSTALL)"),
    "sudo writebackd --mode observe": ("vm/inside/package_life.py", "*observe.split()"),
    "sudo dnf install ./writebackd-*.noarch.rpm": (
        "vm/test_packages.py", "package_life.commands(str(README), package_life.FEDORA)"),
    "make docs": ("unit/test_docs.py", "reference.pages()"),
}  # fmt: skip
RUN_HERE = {
    "sudo agent/run", "sudo agent/run --mode observe", "sudo tests/run", "sudo tests/run full",
    "tests/run unit",
    "sudo tests/demo", "sudo tests/demo --svg docs/img/rescue.svg",
    f"sudo tests/demo {PICTURES}", "sudo tests/demo --directory /srv",
    "sudo make bench QUICK=1", "make clean", "make check",
    "sudo systemctl enable --now writebackd",
}  # fmt: skip


def test_every_command_of_the_readme_has_a_test_that_runs_it() -> None:
    quoted = re.findall(
        r"`((?:sudo )?(?:agent/run|tests/run|tests/demo|make |pip )[^`]*)`", FRONT
    ) + re.findall(r"(?m)^    ((?:make|pip) .*)", INSTALL)
    others = {c for c in (*in_readme(), *quoted) if "writebackctl" not in c}
    assert others == RUN_HERE | RUN_ELSEWHERE.keys()
    for command, (name, phrase) in RUN_ELSEWHERE.items():
        assert phrase in (ROOT / "tests" / name).read_text(), command


def test_the_policy_of_the_manual_has_no_errors(tmp_path: Path) -> None:
    file = tmp_path / "ours.conf"
    file.write_text(pages.POLICY_EXAMPLE)
    assert list(check(str(file), None)) == []
    file.write_text(pages.POLICY_EXAMPLE.replace("floor = 2M", "floor = 2 metres"))
    assert list(check(str(file), None)) != []


def test_the_page_of_the_files_has_devices_by_driver_and_the_form_of_a_rule(
    share: Path, tmp_path: Path
) -> None:
    page = re.sub(r"\s+", " ", formatted(share / "man/man5/writebackd.conf.5").stdout)
    assert "driver:NAME" in page.partition("[device GLOB]")[2].partition("EXAMPLE")[0]
    match = page.partition("[match]")[2].partition("least (")[0]
    file = tmp_path / "ours.conf"
    rule, points = re.findall(r"POINTS: WHAT, .*: (\w+ = .*) gives (\d+) points", match)[0]
    file.write_text(f"[match]\n{rule}\n")
    services = load_policy(str(file)).match.services
    assert services is not None and services.points == int(points)
    ranges = re.findall(r"\d*G?\.\.\d*G?", match.partition("memory")[2])
    assert len(ranges) == 3
    for text in ranges:
        file.write_text(f"[match]\nmemory = 5: {text}\n")
        assert check(str(file)) == []
    file.write_text(pages.POLICY_EXAMPLE)
    example = load_policy(str(file))
    assert example.match.services is not None and example.match.drivers is not None
    stick = example.of(Device("sdx", "8:16", "8:16", driver="usb-storage"))
    assert stick.ceiling_bytes < example.limits.ceiling_bytes
