# SPDX-License-Identifier: GPL-2.0-or-later
"""doctor --bundle: an archive for a bug report, with private data masked.

Each part is collected in a child process with a time limit: one that hangs on the disk that the
report is about, or fails, costs that part alone. What it gives goes through the mask (mask.py).
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import select
import signal
import tarfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, List, Optional, Tuple

from writebackd import __version__, formats
from writebackd.cli.bundle_parts import COLLECTORS, Host
from writebackd.cli.exit_codes import BAD_NEWS, GOOD, CommandError
from writebackd.cli.mask import Mask, mask_of
from writebackd.cli.output import show, show_json
from writebackd.kernel.files import KernelFiles

# Trying the BPF probe takes 1 to 3 s, journalctl over slow disks more.
LIMIT_S = 20.0
# Of a part; a day of history of a host with many disks is more, and is cut by its reader.
MOST_BYTES = 4 << 20
_GOOD, _FAILED = b"+", b"-"

_HEAD = """\
writebackd {version}: parts of a bug report, made {when} UTC by `writebackctl doctor --bundle`.
Read it before you send it: of secrets only those are found that a word beside them, or their
place, says to be one. Names of devices, mount points, units, cgroups and programs are told: a
report is about them.

In no part: the environment of any process, files of others, data of disks, addresses behind
scheme:// (of routes and hooks).
Masked in all parts: passwords, tokens and keys in command lines, policies and logs (***); numbers
of disks, UUIDs and mail addresses, names below any home/ and /media, by words that are the same in
every bundle of this host{host}.
"""
_HOST = "; its name, and IP and MAC addresses"
_KEPT = "\nNot masked, as --keep-host asked for: name of this host, IP and MAC addresses"


@dataclass(frozen=True)
class Part:
    """A file of the archive, or why there is none."""

    name: str
    text: str
    cut: bool = False
    missing: Optional[str] = None


def bundle(options: argparse.Namespace, files: Optional[KernelFiles] = None) -> int:
    """Write the archive and say what is in it. Raises CommandError."""
    made_s = time.time()
    name = time.strftime("writebackd-bundle-%Y%m%d-%H%M%S", time.gmtime(made_s))
    path = Path(options.bundle or f"{name}.tar.gz")
    _refuse(path)
    files = files or KernelFiles()
    mask = mask_of(files, options.keep_host)
    host = Host(files, options.runtime_dir, mask, made_s)
    parts = [_collect(each, lambda c=collect: c(host), mask)  # type: ignore[misc]
             for each, collect in COLLECTORS]  # fmt: skip
    manifest = _manifest(parts, mask, made_s, options.keep_host)
    data = _archive(name, (Part("MANIFEST", manifest), *parts), made_s)
    _write(path, data)
    there = [each for each in parts if each.missing is None]
    missing = [each for each in parts if each.missing is not None]
    if options.json:
        show_json({
            "file": str(path),
            "bytes": len(data),
            "members": [
                {"name": each.name, "bytes": len(each.text.encode()), "cut": each.cut}
                for each in (Part("MANIFEST", manifest), *there)
            ],
            "missing": [{"name": each.name, "why": each.missing} for each in missing],
            "masked": {kind: count for kind, count in sorted(mask.counts.items()) if count},
        })  # fmt: skip
    else:
        lacks = f"; without {', '.join(each.name for each in missing)}" if missing else ""
        show(f"{path}: {formats.size(len(data))}, {len(there) + 1} files{lacks}")
        show("MANIFEST in it says what was masked: read it before you send it.")
    return GOOD


def _collect(name: str, collect: Callable[[], str], mask: Mask) -> Part:
    """The part as a child process gives it; whatever goes wrong is why there is none."""
    try:
        raw, problem, cut = _in_child(collect)
    except OSError as error:
        raw, problem, cut = b"", str(error), False
    text = raw.decode("utf-8", "replace")
    if problem is not None:
        return Part(name, "", missing=mask(problem))
    if cut:  # half a secret may not look like one
        text = text.rpartition("\n")[0] + f"\n[cut: more than {formats.size(MOST_BYTES)}]"
    text = _masked(name, text, mask)
    return Part(name, text + "\n" * (not text.endswith("\n")), cut)


def _masked(name: str, text: str, mask: Mask) -> str:
    if name.endswith(".json"):
        return mask.document(text, indent=1)
    if name.endswith(".jsonl"):
        return "\n".join(map(mask.document, text.split("\n")))
    return mask(text)


def _in_child(collect: Callable[[], str]) -> Tuple[bytes, Optional[str], bool]:
    """What `collect` returned, or its error, and whether there was more of it."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        _work(collect, write)
    os.close(write)
    deadline, data = time.monotonic() + LIMIT_S, bytearray()
    try:
        with contextlib.closing(os.fdopen(read, "rb", buffering=0)) as pipe:
            while len(data) <= MOST_BYTES:
                left = deadline - time.monotonic()
                if left <= 0 or not select.select([pipe], [], [], left)[0]:
                    return b"", f"no end after {LIMIT_S:.0f} s", False
                chunk = pipe.read(1 << 16)
                if not chunk:
                    break
                data += chunk
    finally:
        _end(child)
    kind, body = bytes(data[:1]), bytes(data[1:])
    if kind == _FAILED:
        return b"", body.decode("utf-8", "replace"), False
    if kind != _GOOD:
        return b"", "it ended without a word", False
    return body[:MOST_BYTES], None, len(data) > MOST_BYTES


def _work(collect: Callable[[], str], write: int) -> None:
    """In the child. A group of its own: what it starts ends with it."""
    code = 1
    try:
        os.setpgid(0, 0)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        try:
            answer = _GOOD + collect().encode("utf-8", "backslashreplace")
        except OSError as error:
            said = f"{error.filename}: {error.strerror}" if error.filename else str(error)
            answer = _FAILED + said.encode("utf-8", "replace")
        except Exception as error:  # of whatever kind: it is told in its place
            answer = _FAILED + (str(error) or type(error).__name__).encode("utf-8", "replace")
        while answer:
            answer = answer[os.write(write, answer) :]
        code = 0
    finally:
        os._exit(code)


def _end(child: int) -> None:
    """Not waited for: in the kernel, behind a disk that hangs, it cannot be killed."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    for _ in range(20):
        if os.waitpid(child, os.WNOHANG)[0]:
            return
        time.sleep(0.005)


def _manifest(parts: List[Part], mask: Mask, made_s: float, keep_host: bool) -> str:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(made_s))
    lines = [_HEAD.format(version=__version__, when=when, host=_KEPT if keep_host else _HOST)]
    lines += ["In it:"]
    for each in parts:
        if each.missing is None:
            size = f"{len(each.text.encode())} bytes" + (", cut" if each.cut else "")
            lines.append(f"  {each.name:<24}{size}")
    lines += ["", "Not in it, and why:"]
    lacking = [f"  {each.name:<24}{each.missing}" for each in parts if each.missing is not None]
    lines += lacking or ["  nothing"]
    lines += ["", "Masked, how often:"]
    counts = [f"  {kind:<24}{count}" for kind, count in sorted(mask.counts.items()) if count]
    return "\n".join([*lines, *(counts or ["  nothing"])]) + "\n"


def _archive(name: str, parts: Tuple[Part, ...], made_s: float) -> bytes:
    """Without names of users: a tar of root's, readable for its owner alone."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", format=tarfile.PAX_FORMAT) as archive:
        for each in parts:
            if each.missing is not None:
                continue
            data = each.text.encode("utf-8", "replace")
            member = tarfile.TarInfo(f"{name}/{each.name}")
            member.size, member.mtime, member.mode = len(data), int(made_s), 0o600
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def _refuse(path: Path) -> None:
    if os.path.lexists(path):
        raise CommandError(f"{path} exists: name another file", BAD_NEWS)


def _write(path: Path, data: bytes) -> None:
    """All of it or nothing, and never over another file. Raises CommandError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        with contextlib.ExitStack() as stack:
            descriptor = os.open(temporary, flags, 0o600)
            stack.callback(temporary.unlink)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            try:
                os.link(temporary, path)
            except PermissionError:  # no links there (FAT): the name is taken first
                os.close(os.open(path, flags, 0o600))
                os.replace(temporary, path)
                stack.pop_all()
    except FileExistsError:
        raise CommandError(f"{path} exists: name another file", BAD_NEWS) from None
    except OSError as error:
        raise CommandError(
            f"cannot write {path} ({error.strerror}): name another file", BAD_NEWS
        ) from None
