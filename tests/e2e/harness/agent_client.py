"""A client of the agent that says what it likes: its protocol, in messages and descriptors."""

import ctypes
import fcntl
import json
import os
import socket
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .agent import NOBODY
from .paths import LIMIT

VERSION = 2
HELLO = {"hello": {"client": "test"}}

# linux/fcntl.h
F_ADD_SEALS = 1033
F_SEAL_SHRINK = 2


def message(body: bytes, *, version: int = VERSION, fds: int = 0, length: int | None = None, sequence: int = 1) -> bytes:
    """A message of the agent's protocol, or nearly one."""
    return b"XWAG" + struct.pack("<HHII", version, fds, sequence, len(body) if length is None else length) + body


def connect(path: Path, uid: int = NOBODY) -> socket.socket:
    """A connection to an agent, by a user of that number."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.setgroups([])
                os.setgid(uid)
                os.setuid(uid)
                connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                connection.connect(str(path))
                socket.send_fds(theirs, [b"x"], [connection.fileno()])
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
        (descriptor,) = socket.recv_fds(ours, 1, 1)[1]
    connection = socket.socket(fileno=descriptor)
    connection.settimeout(LIMIT)
    return connection


def memory(size: int) -> int:
    """A memfd that the agent would register."""
    fd = os.memfd_create("umem", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.truncate(fd, size)
    fcntl.fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK)
    return fd


class Refused(Exception):
    """The agent said no."""

    def __init__(self, refusal: dict[str, str]) -> None:
        super().__init__(refusal["message"])
        self.code = refusal["code"]


class AgentClient:
    """A connection that asks and is answered. What it was given it keeps until it is told."""

    def __init__(self, path: Path, uid: int = NOBODY, hello: bool = True) -> None:
        self.connection = connect(path, uid)
        if hello:
            self.ask(HELLO)

    def send(self, request: dict[str, Any], fds: Sequence[int] = ()) -> None:
        """A request, without waiting for its answer."""
        socket.send_fds(self.connection, [message(json.dumps(request).encode(), fds=len(fds))], list(fds))

    def receive(self) -> tuple[dict[str, Any] | str, list[int]]:
        """The next answer."""
        body, fds, _, _ = socket.recv_fds(self.connection, 1 << 16, 64)
        assert body, "the agent ended the connection"
        answer = json.loads(body[16:])
        if isinstance(answer, dict) and "refused" in answer:
            raise Refused(answer["refused"])
        return answer, fds

    def ask(self, request: dict[str, Any], fds: Sequence[int] = ()) -> tuple[dict[str, Any] | str, list[int]]:
        """A request and its answer; a refusal is [`Refused`]."""
        self.send(request, fds)
        return self.receive()

    def attach(self, interface: str = "server0", queues: int = 2, generic: bool = False) -> int:
        """The program on an interface; its bpf_link."""
        request = {"interface": interface, "queues": queues, "generic": generic, "replace": False, "timestamps": False}
        return self.ask({"attach": request})[1][0]

    def detach(self, interface: str = "server0") -> None:
        """The program off again."""
        self.ask({"detach": {"interface": interface}})

    def bind(
        self, queue: int, size: int, *, mode: str = "copy", sends: bool = True, interface: str = "server0", fd: int = -1
    ) -> int:
        """An AF_XDP socket on a queue with so many bytes of memory: its descriptor."""
        ring = size // 2048 // 2
        own = memory(size) if fd < 0 else fd
        wanted = {
            "interface": interface, "queue": queue, "mode": mode, "frame_size": 2048, "rx_ring": ring, "tx_ring": ring,
            "sends": sends, "patience_ms": 3000, "busy_poll": None,
        }  # fmt: skip
        try:
            return self.ask({"socket": wanted}, [own])[1][0]
        finally:
            os.close(own)

    def close(self) -> None:
        """Ends the connection, and nothing that was given over it."""
        self.connection.close()


# linux/if_xdp.h
AF_XDP, SOL_XDP = 44, 283
XDP_RX_RING, XDP_TX_RING, XDP_FILL_RING, XDP_COMPLETION_RING = 2, 3, 5, 6
XDP_SHARED_UMEM = 1

_LIBC = ctypes.CDLL(None, use_errno=True)


def share_umem(of: int, interface: str, queue: int = 0) -> socket.socket:
    """A socket of one's own on the UMEM of another, in the network namespace of the calling thread."""
    made = socket.socket(AF_XDP, socket.SOCK_RAW, 0)
    for ring in (XDP_FILL_RING, XDP_COMPLETION_RING, XDP_RX_RING, XDP_TX_RING):
        made.setsockopt(SOL_XDP, ring, struct.pack("I", 64))
    address = struct.pack("HHIII", AF_XDP, XDP_SHARED_UMEM, socket.if_nametoindex(interface), queue, of)
    if _LIBC.bind(made.fileno(), address, len(address)) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return made
