"""`expressway fanout` as a process in a lab, and what is sent to it."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from .daemon import finish_all
from .lab import Lab
from .namespace import run_inside, udp_socket
from .paths import BINARY, CLIENTS, LIMIT
from .server import ADMIN, Server

FEED_PORT = 5000
TCP_PORT = 9000


def payload(number: int) -> bytes:
    """Datagram `number`: its number, and a length and content that follow from it."""
    head = number.to_bytes(8, "big")
    return head + bytes([number % 251]) * (number * 37 % 500)


class Fanout(Server):
    """A running fan-out. `ready` has the lines that it printed, each as a dictionary."""

    def __init__(self, lab: Lab, folder: Path, *flags: str, prefix: Sequence[str] = ()) -> None:
        self.lab = lab
        self.namespace = None
        self.admin_port = ADMIN[1]
        self.flags = flags
        self.prefix = prefix
        self.log_file = folder / "fanout.log"
        self.output = ""
        self.start()

    def start(self) -> None:
        """Starts it, at first or again."""
        self.over = False
        command = self.lab.inside(
            "server", *self.prefix, BINARY, "--log-level", "info,expressway_feed=debug", "fanout", *self.flags,
            "--admin", f"{ADMIN[0]}:{ADMIN[1]}",
        )
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        self.ready: list[dict[str, Any]] = []
        self._all_ready = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout
        expected = sum(flag in ("--tcp", "--tls", "--ws", "--wss") for flag in self.flags)
        for line in self.process.stdout:
            self.output += line
            words = line.split()
            if words[:1] == ["ready"]:
                self.ready.append(dict(word.split("=", 1) for word in words[1:]))
            elif line.startswith('{"ready":'):
                self.ready.append(json.loads(line)["ready"])
            if len(self.ready) == expected:
                self._all_ready.set()
        self._all_ready.set()

    def wait_ready(self) -> "Fanout":
        """Waits for its ready lines."""
        assert self._all_ready.wait(LIMIT), f"no ready line:\n{self.log()}"
        assert self.ready, f"ended with {self.process.wait(LIMIT)} before it was ready:\n{self.log()}"
        return self


@contextlib.contextmanager
def fanouts(folder: Path) -> Iterator[Callable[..., Fanout]]:
    """Starts fan-outs, with folders of their own; at the end each has to be well, and to end well."""
    running: list[Fanout] = []

    def start(lab: Lab, *flags: str, prefix: Sequence[str] = ()) -> Fanout:
        own = folder / f"fanout-{len(running)}"
        own.mkdir()
        running.append(Fanout(lab, own, *flags, prefix=prefix))
        return running[-1]

    try:
        yield start
    finally:
        finish_all(running)


class Sender:
    """Sends a feed from the client's namespace."""

    def __init__(self, lab: Lab, to: str, port: int = FEED_PORT, interface: str | None = None) -> None:
        family = socket.AF_INET6 if ":" in to else socket.AF_INET
        self.socket = udp_socket(lab.client_namespace, family, interface)
        self.socket.connect((to, port))
        self.next = 0

    def send(self, count: int = 1) -> int:
        """Sends the next datagrams and returns the number of the last."""
        for _ in range(count):
            self.socket.send(payload(self.next))
            self.next += 1
        return self.next - 1


class Subscriber:
    """A subscriber of a len32 stream in the client's namespace, that checks every frame."""

    def __init__(self, lab: Lab, host: str, port: int = TCP_PORT) -> None:
        self.socket = run_inside(
            lab.client_namespace, lambda: socket.create_connection((host, port), timeout=LIMIT)
        )
        self.expected: int | None = None
        self.gaps: list[int] = []

    def _exactly(self, length: int) -> bytes:
        data = bytearray()
        while len(data) < length:
            part = self.socket.recv(length - len(data))
            if not part:
                raise EOFError(f"ended with {len(data)} of {length} bytes")
            data += part
        return bytes(data)

    def frame(self) -> bytes | int:
        """The next datagram, or the number of datagrams missed."""
        length = int.from_bytes(self._exactly(4), "big")
        if length == 0xFFFF_FFFF:
            return int.from_bytes(self._exactly(8), "big")
        return self._exactly(length)

    def read_to(self, last: int) -> None:
        """Reads up to datagram `last`; order and content have to be right, and gaps announced."""
        while self.expected is None or self.expected <= last:
            frame = self.frame()
            if isinstance(frame, int):
                assert self.expected is not None
                self.gaps.append(frame)
                self.expected += frame
                continue
            number = int.from_bytes(frame[:8], "big")
            assert frame == payload(number), f"datagram {number} is torn"
            assert self.expected in (None, number), f"{number} came where {self.expected} was due"
            self.expected = number + 1

    def close(self) -> None:
        """Leaves."""
        self.socket.close()


def subscribe(lab: Lab, fanout: Fanout, host: str | None = None, count: int = 1) -> list[Subscriber]:
    """Subscribers that the fan-out knows of."""
    before = fanout.metrics().sum("fanout_subscribers")
    made = [Subscriber(lab, host or lab.server["ipv4"]) for _ in range(count)]
    fanout.wait_for("the subscribers", lambda m: m.sum("fanout_subscribers") >= before + count)
    return made



def churn(lab: Lab) -> dict[str, Any]:
    """Has a thousand subscribers come and go while a feed is sent. What they report, which no fault is in."""
    host = lab.server["ipv4"]
    said = lab.run(
        "client", sys.executable, CLIENTS / "fanout_churn.py", "--host", host, "--port", str(TCP_PORT),
        "--feed", host, "--feed-port", str(FEED_PORT),
    )
    report = json.loads(said)
    assert not report["faults"], report["faults"][:10]
    assert report["refused"] == 0 and report["subscribers"] == 1000
    assert report["frames"] > 10_000, report
    return report


def descriptors(pid: int) -> int:
    """The open files of a process."""
    return len(os.listdir(f"/proc/{pid}/fd"))
