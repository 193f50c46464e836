# SPDX-License-Identifier: GPL-2.0-or-later
"""The uid that owns a TCP connection, from the kernel's sock_diag."""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import Optional

_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST = 4, 20, 1
_ESTABLISHED = 1
# struct nlmsghdr: length, type, flags, sequence, port.
_HEADER = struct.Struct("=IHHII")
# struct inet_diag_req_v2: family, protocol, extensions, states.
_REQUEST = struct.Struct("=BBBxI")
# struct inet_diag_sockid: two ports, two addresses, interface, cookie (none).
_PORTS, _REST = struct.Struct("!HH"), struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)
# struct inet_diag_msg: family and state first; uid after socket id, expires and two queues.
_STATE_AT, _UID_AT = _HEADER.size + 1, _HEADER.size + 4 + 48 + 12


def owners_are_known(listener: socket.socket) -> bool:
    """Whether `tcp_peer_uid` works here, tested by connecting to a non-blocking listener.

    The first query may make the kernel load modules, and wait for their disk: send it at the
    start, and no other if it had no answer.
    """
    with contextlib.suppress(OSError), socket.socket(listener.family) as client:
        client.setblocking(False)  # through the unit's IPAddressDeny= it would never come
        client.connect_ex(listener.getsockname())
        accepted, _ = listener.accept()
        with accepted:
            return tcp_peer_uid(accepted) is not None
    return False


def tcp_peer_uid(sock: socket.socket) -> Optional[int]:
    """The uid of a local client; None if unknown. Never waits.

    Only while the peer has not closed the connection: after that the kernel reports uid 0.
    """
    with contextlib.suppress(OSError, struct.error):
        here, there = sock.getsockname(), sock.getpeername()
        ends = (socket.inet_pton(sock.family, end[0]).ljust(16, b"\0") for end in (there, here))
        body = _REQUEST.pack(sock.family, socket.IPPROTO_TCP, 0, 0xFFFFFFFF)
        body += _PORTS.pack(there[1], here[1]) + b"".join(ends) + _REST
        kind = socket.SOCK_RAW | socket.SOCK_NONBLOCK
        with socket.socket(socket.AF_NETLINK, kind, _NETLINK_SOCK_DIAG) as asked:
            size = _HEADER.size + len(body)
            asked.send(_HEADER.pack(size, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 0, 0) + body)
            answer = asked.recv(4096)
        if _HEADER.unpack_from(answer)[1] == _SOCK_DIAG_BY_FAMILY:
            if answer[_STATE_AT] == _ESTABLISHED:
                return int(struct.unpack_from("=I", answer, _UID_AT)[0])
    return None
