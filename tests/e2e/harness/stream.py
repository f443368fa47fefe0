"""Numbered datagrams that go on while something changes."""

import errno
import select
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event

from .namespace import give_room
from .paths import LIMIT

# As many at once as any ring on the way takes, and how long nothing comes at the end.
BURST, PAUSE = 20, 0.005
SILENCE = 2.0

Datagram = tuple[bytes, str]


def stream(
    send: Callable[[int], None], bound: list[socket.socket], meanwhile: Callable[[], None], least: int = 4000
) -> tuple[int, list[list[Datagram]]]:
    """Calls `send` with 0, 1 and so on, evenly, until `meanwhile` has returned and at least that often: how often, and what each
    socket received, with the address that it came from."""
    found: list[list[Datagram]] = [[] for _ in bound]
    sent = Event()

    def collect() -> None:
        last = time.monotonic()
        while not sent.is_set() or time.monotonic() < last + SILENCE:
            for one in select.select(bound, [], [], 0.1)[0]:
                payload, sender = one.recvfrom(65536)
                found[bound.index(one)].append((payload, sender[0]))
                last = time.monotonic()

    with ThreadPoolExecutor(2) as pool:
        reader = pool.submit(collect)
        change = pool.submit(meanwhile)
        number = 0
        try:
            while number < least or not change.done():
                send(number)
                number += 1
                if number % BURST == 0:
                    time.sleep(PAUSE)
        finally:
            sent.set()
        change.result()
        reader.result()
    return number, found


def receiver(make: Callable[[Callable[[], socket.socket]], socket.socket], address: str, port: int) -> socket.socket:
    """A socket of `make`'s namespace at an address, once nobody has it."""

    def bind() -> socket.socket:
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        give_room(made)
        deadline = time.monotonic() + LIMIT
        while True:
            try:
                made.bind((address, port))
                return made
            except OSError as error:
                # A thread that still waits in a socket that was closed.
                if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    return make(bind)
