#!/usr/bin/env python3
"""A publisher of Media over QUIC and its subscriber in one: `moq_times.py HOST:PORT RATE`.

Prints `connected`, and for each line of input, which is a number of seconds, publishes groups for so long and prints how long they took to
come to the subscriber, and how long new connections took, in microseconds.
"""

import json
import sys
import time
from pathlib import Path

from feed_times import percentiles

sys.path.insert(0, str(Path(__file__).parent / "hostile"))
import moq  # noqa: E402
from wire import LIMIT, Target, Wire  # noqa: E402

# A new connection for every so many groups.
NEW_EVERY = 15


class Room:
    """Both, in the room that tests have."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.publisher, self.subscriber = moq.entered(target), moq.entered(target)
        self.publisher.keeps = self.subscriber.keeps = True
        # What the relay asks first, on the first stream that it opens: which broadcasts are there.
        self.until(lambda: self.publisher.data.get(1), "a question")
        self.publisher.write(1, b"\x02\x07\x01" + b"\x07\x01\x04good\0")
        self.publisher.run(0.05)
        # Priority, order, and how old groups may be in milliseconds; from any to any.
        wishes = b"\x01\x00" + moq.varint(10_000) + b"\0\0"
        self.subscriber.write(0, moq.message(moq.SUBSCRIBE, moq.varint(0) + moq.text("good") + moq.text("video") + wishes))
        self.until(lambda: self.subscription() is not None, "a subscription")
        self.id, self.stream, self.number = self.subscription(), moq.ONE_WAY + 4, 0

    def subscription(self) -> int | None:
        """The number that the relay has for what it asks of the publisher; other questions are answered."""
        found = None
        for stream, data in list(self.publisher.data.items()):
            if stream & 3 == 1 and data[0] == 2:
                found = data[2]
            elif stream & 3 == 1 and data[0] == 6:
                self.publisher.write(stream, b"\x06\x00\x00" + moq.varint(1000) + moq.varint(1000), fin=True)
                del self.publisher.data[stream]
        return found

    def until(self, true, what: str) -> None:
        """Turns of both until something is so."""
        deadline = time.monotonic() + LIMIT
        while not true():
            assert self.publisher.closed is None and self.subscriber.closed is None, f"{what}: {self.publisher.closed} {self.subscriber.closed}"
            assert time.monotonic() < deadline, f"no {what}"
            self.publisher.step()
            self.subscriber.step(0.001)

    def group(self) -> None:
        """Publishes a group, and waits until it has come."""
        head = moq.message(moq.GROUP, moq.varint(self.id) + moq.varint(self.number))
        self.publisher.write(self.stream, head + b"\x00\x40\x64" + bytes(100), fin=True)
        self.publisher.flush()
        self.stream, self.number = self.stream + 4, self.number + 1
        self.until(lambda: any(stream & 3 == 3 and stream != 3 for stream in self.subscriber.finished), "group")
        self.subscriber.finished.clear()

    def measure(self, seconds: float, rate: int) -> dict:
        """Times of groups and of new connections."""
        groups, handshakes, start = [], [], time.monotonic()
        for number in range(int(seconds * rate)):
            due = start + number / rate
            while (left := due - time.monotonic()) > 0:
                self.publisher.step(left / 2)
                self.subscriber.step(left / 2)
            self.group()
            groups.append(time.monotonic() - due)
            if number % NEW_EVERY == 0:
                before = time.monotonic()
                wire = Wire(self.target, protocol=moq.MOQ).open()
                assert wire.closed is None and wire.established
                handshakes.append(time.monotonic() - before)
                wire.quic.close()
                wire.flush()
                wire.close()
                # The groups behind it are not late because of it.
                start += handshakes[-1]
        return {"requests": percentiles(groups), "handshakes": percentiles(handshakes)}


def main() -> None:
    connect, rate = sys.argv[1:]
    host, port = connect.rsplit(":", 1)
    room = Room(Target(host, int(port), host))
    room.group()
    print("connected", flush=True)
    for line in sys.stdin:
        print(json.dumps(room.measure(float(line), int(rate))), flush=True)


if __name__ == "__main__":
    main()
