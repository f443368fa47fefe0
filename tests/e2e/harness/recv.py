"""`expressway recv` as a process in a lab, and what is sent to it."""

import contextlib
import itertools
import json
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from .daemon import Daemon, finish_all
from .lab import Lab
from .namespace import udp_socket
from .paths import BINARY, LIMIT
from .server import address

PORT = 5000
# What a datagram begins with that latencies are measured of: crates/feed/src/probe.rs.
MAGIC = 0x45585047


def probe(number: int, late: float = 0.0, size: int = 64) -> bytes:
    """Datagram `number`, that was due `late` seconds ago."""
    due = time.time_ns() - int(late * 1e9)
    head = number.to_bytes(8, "big") + due.to_bytes(8, "big") + bytes(4) + MAGIC.to_bytes(4, "big")
    return head + bytes(size - len(head))


class Recv(Daemon):
    """A running receiver with `--json`. `stop` returns its report."""

    def __init__(
        self, lab: Lab, folder: Path, *flags: str, listen: Sequence[str] = (), prefix: Sequence[str] = ()
    ) -> None:
        self.lab = lab
        self.listen = listen or [address(lab.server["ipv4"], PORT)]
        words = [word for one in self.listen for word in ("--listen", one)]
        self.flags = tuple(map(str, flags))
        self.command = lab.inside("server", *prefix, BINARY, "recv", *words, "--json", *flags)
        self.log_file = folder / "recv.log"
        self.start()

    def start(self) -> None:
        """Starts it, or again."""
        self.over = False
        self.output = ""
        self.log_file.write_text("")
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=log, text=True)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout
        self.output = self.process.stdout.read()

    def wait_ready(self) -> dict[str, str]:
        """Waits for its ready lines and returns the words of the last."""
        self.wait_log(f"ready listen={self.listen[-1]}")
        lines = [line for line in self.log().splitlines() if " ready listen=" in line]
        assert len(lines) == len(self.listen)
        return dict(word.split("=", 1) for word in lines[-1].split("ready ", 1)[1].split())

    def send_signal(self, number: signal.Signals) -> None:
        """Sends it a signal."""
        self.process.send_signal(number)

    def wait(self) -> int:
        """Its exit code."""
        code = super().wait()
        self._reader.join(LIMIT)
        return code

    def left(self) -> list[str]:
        """XDP programs, and the sockets that its readers came to."""
        folders = [Path(folder) for flag, folder in itertools.pairwise(self.flags) if flag in ("--lend", "--records")]
        sockets = [str(path) for folder in folders for path in (folder, *folder.glob("*")) if path.is_socket()]
        return self.lab.programs("server") + sockets

    def report(self) -> dict[str, Any]:
        """What it printed at its end, one JSON document and nothing else; nothing may be left of it."""
        assert self.wait() == 0, self.log()
        assert not self.left(), f"it left {self.left()}:\n{self.log()}"
        document = json.loads(self.output)
        assert document["error"] is None, document
        return document

    def stop(self, number: signal.Signals = signal.SIGTERM) -> dict[str, Any]:
        """Ends it; the report."""
        self.send_signal(number)
        return self.report()


@contextlib.contextmanager
def receivers(folder: Path) -> Iterator[Callable[..., Recv]]:
    """Starts receivers, with folders of their own; at the end each has to be well, and to end well."""
    running: list[Recv] = []

    def start(lab: Lab, *flags: str, **options: Any) -> Recv:
        own = folder / f"recv-{len(running)}"
        own.mkdir()
        running.append(Recv(lab, own, *flags, **options))
        return running[-1]

    try:
        yield start
    finally:
        finish_all(running)


class Peer:
    """A socket in the client's namespace, connected to the receiver."""

    def __init__(self, lab: Lab, to: str, port: int = PORT, interface: str | None = None, source: str = "") -> None:
        family = socket.AF_INET6 if ":" in to else socket.AF_INET
        self.socket = udp_socket(lab.client_namespace, family, interface)
        if source:
            self.socket.bind((source, 0))
        self.socket.settimeout(LIMIT)
        self.socket.connect((to, port))

    def send(self, count: int, late: float = 0.0, size: int = 64) -> int:
        """Sends `count` probes and returns their number."""
        for number in range(count):
            self.socket.send(probe(number, late, size))
            if number % 32 == 31:
                # A veth's ring holds 256.
                time.sleep(0.001)
        return count
