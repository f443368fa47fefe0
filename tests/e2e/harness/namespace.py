"""Work inside a network namespace, by a thread that moves there."""

import ctypes
import os
import socket
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_LIBC = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWNET = 0x40000000
_SO_RCVBUFFORCE = 33


def run_inside(namespace: str, work: Callable[[], T]) -> T:
    """Runs `work` on a thread in the namespace; sockets that it makes stay there wherever they are used.

    A namespace is a name, or the path of its file.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def enter() -> None:
        try:
            descriptor = os.open(os.path.join("/run/netns", namespace), os.O_RDONLY | os.O_CLOEXEC)
            try:
                if _LIBC.setns(descriptor, _CLONE_NEWNET) != 0:
                    number = ctypes.get_errno()
                    raise OSError(number, f"setns {namespace}: {os.strerror(number)}")
            finally:
                os.close(descriptor)
            results.append(work())
        except BaseException as error:  # handed to the caller, whatever it is
            errors.append(error)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def give_room(made: socket.socket) -> None:
    """Room for what comes while whoever reads is not run."""
    made.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 16 << 20)


def udp_socket(namespace: str, family: int, interface: str | None = None) -> socket.socket:
    """A UDP socket in the namespace, which sends to groups by that interface."""

    def make() -> socket.socket:
        made = socket.socket(family, socket.SOCK_DGRAM)
        if interface:
            index = socket.if_nametoindex(interface)
            if family == socket.AF_INET:
                made.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, bytes(8) + index.to_bytes(4, "little"))
            else:
                made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, index)
        return made

    return run_inside(namespace, make)
