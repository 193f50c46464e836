# SPDX-License-Identifier: GPL-2.0-or-later
"""The verb doctor: findings about this host, or an archive for a bug report.

Each part is collected in a child process with a time limit: one that hangs on the disk that the
report is about, or fails, only loses its own part. Secrets, addresses, names of hosts and people
are replaced by ``***``.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import select
import signal
import tarfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from writebackd import __version__, formats
from writebackd.cli.bundle_parts import COLLECTORS, Host
from writebackd.cli.daemon_verbs import render_findings
from writebackd.cli.doctor_checks import findings
from writebackd.cli.exit_codes import BAD_NEWS, GOOD, CommandError
from writebackd.cli.output import show_answer, show_screen
from writebackd.kernel.argv_redaction import MASK, SECRET, redacted_text
from writebackd.kernel.files import KernelFiles

if TYPE_CHECKING:
    from writebackd.cli.client_answers import DoctorAnswer, DoctorBundleAnswer

# Group 1 stays.  Of a unit name@instance.service and of file:// nothing is left out.
_PATTERNS = tuple(re.compile(pattern, re.IGNORECASE | re.MULTILINE) for pattern in (
    r"^(\s*(?:[#;][ \t]*)?(?:Environment|PassEnvironment|UnsetEnvironment"
    r"|(?:Set|Load)Credential(?:Encrypted)?)\s*=)(?=.).*$",
    r"""\b((?!file:)[a-z][a-z0-9+.-]{1,20}://)(?!/)[^\s"'<>\\]+""",
    r"()[\w.%+-]+@[a-z0-9-]+(?:\.[a-z0-9-]+)*\.(?!service|scope|slice|socket|mount|timer)[a-z]{2,}",
    r"\b()[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b",
    r"\b()(?:naa\.|eui\.|nvme\.|wwn-0x|0x)[0-9a-f]{16,64}\b",
    r"(?<![\w.-])()\d{1,3}(?:\.\d{1,3}){3}(?![\w-]|\.\d)",
    # IPv6 and MAC: a time of day has two colons.
    r"(?<![\w:.])()(?:[0-9a-f]{0,4}:){3,7}[0-9a-f]{0,4}(?![\w:])",
    r"(/by-(?:id|uuid|label)/)[^\s,\"']+",
    # Wherever home directories are: /var/home, /export/home, a subvolume.
    r"((?:/@?home|(?<![\w/])(?:/run)?/media)/)[^/\s:,\"']+",
))  # fmt: skip
_SHORTEST_NAME = 3


class PrivateData:
    """The private data of one host, and how often they were removed."""

    def __init__(self, files: KernelFiles) -> None:
        self.count = 0
        names = {os.uname().nodename, files.try_read("/etc/hostname") or ""}
        names |= {name.split(".")[0] for name in names}
        # Installers name volume groups after the host; device-mapper doubles each '-' of it.
        known = "|".join(
            "-+".join(map(re.escape, name.split("-")))
            for name in sorted(names, key=len, reverse=True)
            if len(name) >= _SHORTEST_NAME and name != "localhost"
        )
        host = re.compile(rf"(?<![^\W_])()(?:{known or '(?!)'})(?![^\W_])", re.IGNORECASE)
        self._patterns = (*_PATTERNS, host)

    def without(self, text: str) -> str:
        """The text without private data."""
        rest = redacted_text(text)
        for pattern in self._patterns:
            rest = pattern.sub(rf"\g<1>{MASK}", rest)
        self.count += max(0, rest.count(MASK) - text.count(MASK))
        return rest

    def document(self, text: str, indent: Optional[int] = None) -> str:
        """JSON without private data in its strings, still JSON; other text as `without`."""
        try:
            return json.dumps(self._value(json.loads(text)), indent=indent)
        except (ValueError, RecursionError):
            return self.without(text)

    def _value(self, value: Any) -> Any:
        if isinstance(value, dict):
            return dict(map(self._item, value.items()))
        if isinstance(value, list):
            return [self._value(each) for each in value]
        return self.without(value) if isinstance(value, str) else value

    def _item(self, item: Tuple[str, Any]) -> Tuple[str, Any]:
        name, value = item
        if (SECRET.search(name) or name == "wwn") and value not in (None, ""):
            self.count += 1
            return name, MASK
        # Names of fields stay whatever the host is called.
        return name, self._value(value)


# Trying the BPF probe takes 1 to 3 s, journalctl over slow disks more.
LIMIT_S = 20.0
# Of a part; a day of history of a host with many disks is more, and is cut by its reader.
MOST_BYTES = 4 << 20
_GOOD, _FAILED = b"+", b"-"

_HEAD = """\
writebackd {version}: parts of a bug report, made {when} UTC by `writebackctl doctor --bundle`.
Read it before you send it: secrets are recognized by a nearby word or by their position, and any
other secret stays. Names of devices, mount points, units, cgroups and programs are in it.

Not included: environments of processes, files of other programs, data on disks.
Left out, {count} times (***): passwords, tokens and keys in command lines, policies and logs; what
follows scheme:// in an address; mail, IP and MAC addresses; UUIDs, wwids and by-id names of disks;
names below any home/ and /media; the name of this host.
"""


@dataclass(frozen=True)
class Part:
    """A file of the archive."""

    name: str
    text: str
    cut: bool = False


def doctor(options: argparse.Namespace) -> int:
    if options.bundle is not None:
        return bundle(options)
    found = findings(options.runtime_dir)
    answer: DoctorAnswer = {
        "good": all(level != "blocker" for level, _ in found),
        "findings": [{"level": level, "text": text} for level, text in found],
    }
    show_screen(options, answer, render_findings)
    return GOOD if answer["good"] else BAD_NEWS


def bundle(options: argparse.Namespace, files: Optional[KernelFiles] = None) -> int:
    """Write the archive and list its contents. Raises CommandError."""
    made_s = time.time()
    name = time.strftime("writebackd-bundle-%Y%m%d-%H%M%S", time.gmtime(made_s))
    path = Path(options.bundle or f"{name}.tar.gz")
    _refuse(path)
    files = files or KernelFiles()
    private = PrivateData(files)
    host = Host(files, options.runtime_dir, made_s)
    parts: List[Part] = []
    missing: Dict[str, str] = {}  # and why
    for member, collect in COLLECTORS:
        try:
            parts.append(_collect(member, partial(collect, host), private))
        except (OSError, _NoPart) as error:
            missing[member] = private.without(str(error))
    parts.insert(0, Part("MANIFEST", _manifest(parts, missing, private.count, made_s)))
    data = _archive(name, parts, made_s)
    _write(path, data)
    answer: DoctorBundleAnswer = {
        "file": str(path),
        "bytes": len(data),
        "members": [
            {"name": each.name, "bytes": len(each.text.encode()), "cut": each.cut}
            for each in parts
        ],
        "missing": [{"name": member, "why": why} for member, why in missing.items()],
        "left_out": private.count,
    }
    lacks = f"; without {', '.join(missing)}" if missing else ""
    show_answer(options, answer, lambda: (
        f"{path}: {formats.size(len(data))}, {len(parts)} files{lacks}\n"
        "MANIFEST in it says what was left out: read it before you send it."
    ))  # fmt: skip
    return GOOD


class _NoPart(Exception):
    """Why a part is missing."""


def _collect(name: str, collect: Callable[[], str], private: PrivateData) -> Part:
    """Collect the part in a child process. Raises OSError and _NoPart."""
    raw = _in_child(collect)
    text, cut = raw[:MOST_BYTES].decode("utf-8", "replace"), len(raw) > MOST_BYTES
    if cut:  # half a secret may not look like one
        text = text.rpartition("\n")[0] + f"\n[cut: more than {formats.size(MOST_BYTES)}]"
    if name.endswith(".json"):
        text = private.document(text, indent=1)
    elif name.endswith(".jsonl"):
        text = "\n".join(map(private.document, text.split("\n")))
    else:
        text = private.without(text)
    return Part(name, text + "\n" * (not text.endswith("\n")), cut)


def _in_child(collect: Callable[[], str]) -> bytes:
    """The result of `collect`, up to MOST_BYTES. Raises OSError and _NoPart."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        _work(collect, write)
    os.close(write)
    deadline, data = time.monotonic() + LIMIT_S, bytearray()
    try:
        with contextlib.closing(os.fdopen(read, "rb", buffering=0)) as pipe:
            while len(data) <= MOST_BYTES + 1:
                left = deadline - time.monotonic()
                if left <= 0 or not select.select([pipe], [], [], left)[0]:
                    raise _NoPart(f"timed out after {LIMIT_S:.0f} s")
                chunk = pipe.read(1 << 16)
                if not chunk:
                    break
                data += chunk
    finally:
        _end(child)
    kind, body = bytes(data[:1]), bytes(data[1:])
    if kind != _GOOD:
        raise _NoPart(body.decode("utf-8", "replace") or "the child ended without an answer")
    return body


def _work(collect: Callable[[], str], write: int) -> None:
    """Runs in the child, in its own process group, so that its children end with it."""
    try:
        os.setpgid(0, 0)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        try:
            answer = _GOOD + collect().encode("utf-8", "backslashreplace")
        except Exception as error:  # of any kind: the archive has the error instead
            said = str(error) or type(error).__name__
            if isinstance(error, OSError) and error.filename:
                said = f"{error.filename}: {error.strerror}"
            answer = _FAILED + said.encode("utf-8", "replace")
        while answer:
            answer = answer[os.write(write, answer) :]
    finally:
        os._exit(0)


def _end(child: int) -> None:
    """Kill, but do not wait: a child that waits in the kernel for a disk cannot be killed."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    for _ in range(20):
        if os.waitpid(child, os.WNOHANG)[0]:
            return
        time.sleep(0.005)


def _manifest(
    parts: Sequence[Part], missing: Mapping[str, str], count: int, made_s: float
) -> str:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(made_s))
    there = {
        each.name: f"{len(each.text.encode())} bytes" + ", cut" * each.cut for each in parts
    }
    text = _HEAD.format(version=__version__, when=when, count=count)
    for title, rows in (("In it:", there), ("Not in it, and why:", missing)):
        lines = [f"  {name:<24}{said}" for name, said in rows.items()] or ["  nothing"]
        text += "\n".join(["", title, *lines, ""])
    return text


def _archive(name: str, parts: Sequence[Part], made_s: float) -> bytes:
    """A tar without user names: root's, readable only by its owner."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", format=tarfile.PAX_FORMAT) as archive:
        for each in parts:
            data = each.text.encode("utf-8", "replace")
            member = tarfile.TarInfo(f"{name}/{each.name}")
            member.size, member.mtime, member.mode = len(data), int(made_s), 0o600
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def _refuse(path: Path) -> None:
    if os.path.lexists(path):
        raise CommandError(f"{path} exists: name another file", BAD_NEWS)


def _write(path: Path, data: bytes) -> None:
    """Write all or nothing, and never over another file. Raises CommandError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        with contextlib.ExitStack() as undo:
            with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
                undo.callback(path.unlink)
                file.write(data)
            undo.pop_all()
    except FileExistsError:
        raise CommandError(f"{path} exists: name another file", BAD_NEWS) from None
    except OSError as error:
        raise CommandError(
            f"cannot write {path} ({error.strerror}): name another file", BAD_NEWS
        ) from None
