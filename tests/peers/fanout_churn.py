"""A thousand subscribers of a len32 feed that come and go at random; every frame that arrives is checked.

Sends the feed itself, in bursts of ten. Each subscriber lives for a random time and leaves in one of the ways in
`WAYS`. Prints one JSON document: how many subscribers and frames there were, and every fault.
"""

import argparse
import asyncio
import json
import random
import socket
import struct
import sys
from functools import lru_cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))

from harness.fanout import payload

WAYS = ("close", "reset", "half-close", "garbage", "stall")
GAP = 0xFFFF_FFFF

expected = lru_cache(maxsize=1 << 16)(payload)


class Report:
    """What was seen, over all subscribers."""

    def __init__(self) -> None:
        self.subscribers = 0
        self.frames = 0
        self.gaps = 0
        self.missed = 0
        self.refused = 0
        self.faults: list[str] = []


class Checker:
    """The frames of one subscriber."""

    def __init__(self, report: Report, name: str) -> None:
        self.report, self.name = report, name
        self.buffer = bytearray()
        self.next: int | None = None

    def fault(self, text: str) -> None:
        self.report.faults.append(f"{self.name}: {text}")
        raise ValueError(text)

    def feed(self, data: bytes) -> None:
        """Takes what has arrived, and checks the frames that are whole."""
        self.buffer += data
        at = 0
        while len(self.buffer) - at >= 4:
            (length,) = struct.unpack_from(">I", self.buffer, at)
            if length == GAP:
                if len(self.buffer) - at < 12:
                    break
                (missed,) = struct.unpack_from(">Q", self.buffer, at + 4)
                at += 12
                if missed == 0:
                    self.fault("a gap of nothing")
                self.report.gaps += 1
                self.report.missed += missed
                if self.next is not None:
                    self.next += missed
                continue
            if length > 1500:
                self.fault(f"a frame of {length} bytes")
            if len(self.buffer) - at < 4 + length:
                break
            frame = bytes(self.buffer[at + 4 : at + 4 + length])
            at += 4 + length
            number = int.from_bytes(frame[:8], "big")
            if frame != expected(number):
                self.fault(f"datagram {number} is torn")
            if self.next is not None and number != self.next:
                self.fault(f"{number} came where {self.next} was due")
            self.next = number + 1
            self.report.frames += 1
        del self.buffer[:at]


async def subscriber(report: Report, host: str, port: int, way: str, life: float, name: str) -> None:
    """One subscriber, from connect to its way of leaving."""
    try:
        reader, writer = await asyncio.open_connection(host, port, limit=1 << 16)
    except OSError:
        report.refused += 1
        return
    report.subscribers += 1
    checker = Checker(report, name)
    end = asyncio.get_running_loop().time() + life
    try:
        if way == "half-close":
            writer.write_eof()
        if way == "garbage":
            writer.write(random.randbytes(20_000))
        if way == "stall":
            await asyncio.sleep(life / 2)
        while (left := end - asyncio.get_running_loop().time()) > 0:
            try:
                data = await asyncio.wait_for(reader.read(1 << 16), left)
            except TimeoutError:
                break
            if not data:
                checker.fault(f"ended by the server, with {len(checker.buffer)} bytes of a frame")
            checker.feed(data)
        if way == "reset":
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    except ValueError:
        pass
    except OSError as error:
        report.faults.append(f"{name}: {error!r}")
    finally:
        writer.close()


async def send(arguments: argparse.Namespace, stop: asyncio.Event) -> int:
    """The feed, in bursts, until told to stop. Returns how many datagrams it had."""
    feed = socket.socket(socket.AF_INET6 if ":" in arguments.feed else socket.AF_INET, socket.SOCK_DGRAM)
    feed.connect((arguments.feed, arguments.feed_port))
    number = 0
    while not stop.is_set():
        for _ in range(10):
            feed.send(payload(number))
            number += 1
        await asyncio.sleep(10 / arguments.rate)
    return number


async def main() -> None:
    """All of them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--feed", required=True)
    parser.add_argument("--feed-port", type=int, required=True)
    parser.add_argument("--subscribers", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=100)
    parser.add_argument("--life", type=float, default=4)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    random.seed(arguments.seed)
    report, stop = Report(), asyncio.Event()
    feed = asyncio.create_task(send(arguments, stop))

    async def later(index: int) -> None:
        await asyncio.sleep(random.uniform(0, arguments.life))
        way = WAYS[index % len(WAYS)]
        life = random.uniform(0.1, arguments.life)
        await subscriber(report, arguments.host, arguments.port, way, life, f"{index} ({way})")

    await asyncio.gather(*(later(index) for index in range(arguments.subscribers)))
    stop.set()
    sent = await feed
    print(json.dumps({"sent": sent, **vars(report)}))


asyncio.run(main())
