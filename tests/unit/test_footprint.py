# SPDX-License-Identifier: GPL-2.0-or-later
"""What a start of the daemon takes along: no package but Python's own, and a bounded lot of it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, Dict

import pytest

from checkout import ROOT

# Python 3.11 on Debian 12: 180 modules of the program, 149 others, 29 MB. Each costs about a
# millisecond at every start, and stays in locked memory.
MOST_OWN, MOST_OTHERS, MOST_RSS_MB = 200, 175, 36
PROGRAM = """
import json, sys
sys.modules.update(dict.fromkeys(("psutil", "pyroute2", "bcc", "systemd")))
sys.path.insert(0, sys.argv[1])
import writebackd.cli.daemon_main
(rss,) = (line for line in open("/proc/self/status") if line.startswith("VmRSS"))
loaded = {name: getattr(each, "__file__", None) for name, each in sys.modules.items() if each}
print(json.dumps({"rss_kb": int(rss.split()[1]), "modules": loaded}))
"""


@pytest.fixture(scope="module")
def started() -> Dict[str, Any]:
    """Without site: what a virtual environment loads by itself is not ours."""
    done = subprocess.run([sys.executable, "-I", "-S", "-c", PROGRAM, str(ROOT / "agent")],
                          capture_output=True, text=True, timeout=60, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: Dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_daemon_imports_nothing_that_is_installed(started: Dict[str, Any]) -> None:
    own = str(ROOT / "agent" / "writebackd")
    paths = {name: path for name, path in started["modules"].items() if path}
    assert "site-packages" not in str(paths) and "dist-packages" not in str(paths)
    assert all(path.startswith(own) for name, path in paths.items() if name[:10] == "writebackd")


def test_it_imports_no_more_modules_than_it_may(
    started: Dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    own = [name for name in started["modules"] if name.partition(".")[0] == "writebackd"]
    others = len(started["modules"]) - len(own)
    with capsys.disabled():
        print(f"\n  imported: {len(own)} own modules (at most {MOST_OWN}), {others} others"
              f" (at most {MOST_OTHERS}); {started['rss_kb'] / 1024:.0f} MB, at most {MOST_RSS_MB}")
    assert len(own) <= MOST_OWN and others <= MOST_OTHERS
    assert started["rss_kb"] / 1024 <= MOST_RSS_MB


def test_no_compiler_is_needed_on_the_host() -> None:
    control = (ROOT / "debian/control").read_text()
    source, package = control.split("\nPackage: ")
    assert "clang" in source
    needs = package[: package.index("Description:")]
    assert not [word for word in ("clang", "llvm", "gcc", "make", "pip") if word in needs]
    assert "\nArchitecture: all\nDepends: ${misc:Depends}, ${python3:Depends}\n" in needs
    assert "\nRecommends: libbpf1 | writebackd-libbpf, python3-psutil, " in needs
