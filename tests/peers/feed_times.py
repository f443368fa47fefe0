#!/usr/bin/env python3
"""A feed's sender and its subscriber in one: `feed_times.py FEED TCP RATE`, with addresses as HOST:PORT.

Prints `connected`, and for each line of input, which is a number of seconds, sends the feed for so long and prints how
long datagrams took to come to a subscriber (len32 framing) and to one that is new, in microseconds.
"""

import json
import select
import socket
import struct
import sys
import time

# A new subscriber for every so many datagrams.
NEW_EVERY = 15
# How long the last datagram may take.
LIMIT = 20.0


def percentiles(times: list[float]) -> dict[str, int]:
    """What a test compares."""
    if not times:
        return {"count": 0, "p50": 0, "p99": 0, "max": 0}
    times.sort()
    at = lambda share: int(1e6 * times[(len(times) - 1) * share // 100])  # noqa: E731
    return {"count": len(times), "p50": at(50), "p99": at(99), "max": at(100)}


class Subscriber:
    """One subscriber; datagrams carry when they were due."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address, timeout=LIMIT)
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = b""

    def take(self) -> list[float]:
        """When the datagrams that came were due."""
        try:
            data = self.socket.recv(65536)
        except BlockingIOError:
            return []
        if not data:
            raise EOFError("the subscriber was disconnected")
        self.buffer += data
        due = []
        while len(self.buffer) >= 12:
            (length,) = struct.unpack_from("!I", self.buffer)
            assert length == 8, f"a frame of {length} bytes"
            due.append(struct.unpack_from("!d", self.buffer, 4)[0])
            self.buffer = self.buffer[12:]
        return due


def subscribed(out: socket.socket, tcp: tuple[str, int]) -> Subscriber:
    """A subscriber that the fan-out knows of: something has come to it, and nothing more is to come."""
    made = Subscriber(tcp)
    while True:
        out.send(struct.pack("!d", 0.0))
        select.select([made.socket], [], [], 0.05)
        if made.take():
            break
    while select.select([made.socket], [], [], 0.2)[0]:
        made.take()
    return made


def measure(out: socket.socket, old: Subscriber, tcp: tuple[str, int], rate: float, seconds: float) -> dict:
    """Sends for so long; times of the old subscriber, and of new ones from when they connect."""
    count, start = int(seconds * rate), time.monotonic()
    sent = come = 0
    times: list[float] = []
    first: list[float] = []
    new: tuple[Subscriber, float] | None = None
    deadline = start + seconds + LIMIT
    while come < count or new:
        now = time.monotonic()
        if now > deadline:
            return {"errors": {f"{come} of {count} datagrams came": 1}}
        if sent < count and now >= start + sent / rate:
            out.send(struct.pack("!d", start + sent / rate))
            sent += 1
            if sent % NEW_EVERY == 0 and new is None and sent < count:
                new = (Subscriber(tcp), now)
            continue
        if sent == count and come == count and new:
            # Nothing more is sent that it could get.
            new[0].socket.close()
            new = None
            continue
        sockets = [old.socket, *([new[0].socket] if new else [])]
        wait = start + sent / rate - now if sent < count else 0.05
        ready, _, _ = select.select(sockets, [], [], max(0.0, wait))
        now = time.monotonic()
        if old.socket in ready:
            due = old.take()
            come += len(due)
            times += [now - one for one in due]
        if new and new[0].socket in ready and new[0].take():
            first.append(now - new[1])
            new[0].socket.close()
            new = None
    return {"requests": percentiles(times), "handshakes": percentiles(first)}


def main() -> None:
    def address(text: str) -> tuple[str, int]:
        host, port = text.rsplit(":", 1)
        return host, int(port)

    feed, tcp, rate = address(sys.argv[1]), address(sys.argv[2]), float(sys.argv[3])
    out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    out.connect(feed)
    old = subscribed(out, tcp)
    print("connected", flush=True)
    for line in sys.stdin:
        print(json.dumps(measure(out, old, tcp, rate, float(line))), flush=True)


if __name__ == "__main__":
    main()
