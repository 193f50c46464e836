# SPDX-License-Identifier: GPL-2.0-or-later
"""The kinds of load that a scenario can name."""

from typing import Dict, Tuple, Type

from .base import Load
from .copies import Job, Rsync, Untar
from .flood import Dd
from .fuse import Fuse
from .mariadb import MysqlOltp
from .postgres import Pgbench, PgbenchMix, Tpcc
from .redis import Redis
from .sync import Fsync
from .sysbench import SysbenchFileio
from .writers import Memory, Mmap, Read, Writer

_ALL: Tuple[Type[Load], ...] = (
    Fsync, Dd, Rsync, Untar, Job, Writer, Mmap, Memory, Read, SysbenchFileio,
    MysqlOltp, Pgbench, PgbenchMix, Tpcc, Redis, Fuse)
KINDS: Dict[str, Type[Load]] = {kind.KIND: kind for kind in _ALL}
