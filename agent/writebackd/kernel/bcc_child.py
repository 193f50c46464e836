# SPDX-License-Identifier: GPL-2.0-or-later
"""Compiles the probe with bcc, in a process of its own: LLVM takes 210 MB.

    python3 -I bcc_child.py FLAG... < SOURCE > PROGRAMS

PROGRAMS is a JSON object of instructions in base64, by program name.  Needs bcc's module for the
system's Python, and nothing from this package.
"""

import base64
import json
import os
import sys
from typing import Any, List

# What not every kernel has, by the names of fields in its headers: the newest kernels first.
# See compat.h.
FIELDS = (("HAS_DISKSEQ",), ("HAS_DISKSEQ", "HAS_RQ_DISK"), ("HAS_RQ_DISK",))


def compile_source(bcc: Any, source: str, flags: List[str]) -> Any:
    """The module for the first set of fields with which the source compiles."""
    for fields in FIELDS:
        try:
            return bcc.BPF(text=source, cflags=[*flags, *(f"-D{field}" for field in fields)])
        except Exception as error:
            failure = error  # no class of its own
    raise failure


def main() -> None:
    # bcc writes messages to standard output.
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import bcc

    module = compile_source(bcc, sys.stdin.read(), sys.argv[1:])
    count = bcc.lib.bpf_num_functions(module.module)
    names = [bcc.lib.bpf_function_name(module.module, number) for number in range(count)]
    programs = {
        name.decode(): base64.b64encode(module.dump_func(name)).decode() for name in names
    }
    with output:
        json.dump(programs, output)


if __name__ == "__main__":
    main()
