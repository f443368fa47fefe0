"""Work inside a network namespace, by a thread that moves there."""

import ctypes
import os
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_LIBC = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWNET = 0x40000000


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
