"""Attacks on TCP listeners: HTTP/1.1 of the admin listener; lines, TLS and WebSocket of a fan-out."""

import os
import random
import socket
import ssl
import time
from collections.abc import Iterator

from report import Report
from wire import Target

# More than any listener here has reason to keep.
CROWD = 600


class Crowd:
    """Connections; closed ones are reopened."""

    def __init__(self, target: Target, report: Report, count: int = CROWD) -> None:
        self.target, self.report, self.count = target, report, count
        self.open: list[socket.socket] = []

    def fill(self, most: int = 50) -> None:
        """Makes what is missing, a few at a time."""
        for _ in range(min(most, self.count - len(self.open))):
            made = socket.socket(socket.AF_INET6 if ":" in self.target.host else socket.AF_INET)
            made.setblocking(False)
            made.connect_ex((self.target.host, self.target.port))
            self.open.append(made)
            self.report.add("connections")

    def prune(self) -> None:
        """Drops those that the other side has ended, with a count of how, and reads what the others are told."""
        left = []
        for one in self.open:
            try:
                data = one.recv(4096)
            except (BlockingIOError, InterruptedError):
                left.append(one)
                continue
            except OSError as error:
                self.report.add(f"lost {error.strerror.lower()}")
                one.close()
                continue
            if data:
                self.report.add(f"told {data.split(b' ', 2)[1].decode(errors='replace')}" if data[:5] == b"HTTP/" else "told")
                left.append(one)
            else:
                self.report.add("closed")
                one.close()
        self.open = left

    def send(self, make) -> None:
        """Sends each what `make` makes for it."""
        for number, one in enumerate(self.open):
            try:
                one.send(make(number))
            except OSError:
                continue

    def close(self) -> None:
        """Leaves with all of them."""
        for one in self.open:
            one.close()


def crowd(target: Target, report: Report, first, then, every: float = 0.2, reads: bool = True) -> Iterator[None]:
    """Connections that each send `first` once, and then what `then` makes of their number, from time to time."""
    people = Crowd(target, report)
    greeted: set[socket.socket] = set()
    try:
        while True:
            people.fill()
            for one in people.open:
                if first and one not in greeted:
                    try:
                        one.send(first())
                        greeted.add(one)
                    except OSError:
                        continue
            people.send(then)
            if reads:
                people.prune()
                greeted &= set(people.open)
            time.sleep(every)
            yield
    finally:
        report.add("held", len(people.open))
        people.close()


def silent_connections(target: Target, report: Report) -> Iterator[None]:
    """Connections that say nothing."""
    return crowd(target, report, None, lambda _: b"")


def slow_http(target: Target, report: Report) -> Iterator[None]:
    """Requests whose header fields come a byte at a time, for ever."""
    lead = b"GET /feed HTTP/1.1\r\nHost: edge.test\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nX-Slow: "
    return crowd(target, report, lambda: lead, lambda _: b"a")


def slow_lines(target: Target, report: Report) -> Iterator[None]:
    """Lines that come a byte at a time."""
    return crowd(target, report, lambda: b"l", lambda _: b"a")


def slow_tls(target: Target, report: Report) -> Iterator[None]:
    """TLS handshakes whose first message comes a byte at a time."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    half = context.wrap_bio(incoming, outgoing, server_hostname=target.name)
    try:
        half.do_handshake()
    except ssl.SSLWantReadError:
        pass
    hello = outgoing.read()
    return crowd(target, report, lambda: hello[:60], lambda _: hello[60:61])


def unread_pages(target: Target, report: Report) -> Iterator[None]:
    """Requests for the longest page, one behind the other, of which nothing is read."""
    request = b"GET /metrics HTTP/1.1\r\nHost: edge.test\r\n\r\n"
    return crowd(target, report, None, lambda _: request, reads=False)


def long_heads(target: Target, report: Report) -> Iterator[None]:
    """Requests with more header than anybody reads."""
    line = b"X-Long: " + b"a" * 4000 + b"\r\n"
    return crowd(target, report, lambda: b"GET /metrics HTTP/1.1\r\nHost: edge.test\r\n", lambda _: line)


def hasty_connections(target: Target, report: Report) -> Iterator[None]:
    """Connections that are reset as soon as they are made, by the hundred."""
    linger = (1).to_bytes(4, "little") + (0).to_bytes(4, "little")
    while True:
        people = Crowd(target, report, 100)
        people.fill(100)
        time.sleep(0.02)
        for number, one in enumerate(people.open):
            if number % 2:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            try:
                one.send(os.urandom(random.randrange(1, 64)))
            except OSError:
                pass
        people.close()
        yield


def plain_connections(target: Target, report: Report) -> Iterator[None]:
    """No attack: connections one after the other, each of which is ended in order."""
    while True:
        with socket.create_connection((target.host, target.port), timeout=20):
            time.sleep(0.01)
        report.add("connections")
        yield


ATTACKS = [
    plain_connections, silent_connections, slow_http, slow_lines, slow_tls, unread_pages, long_heads, hasty_connections,
]
