"""A transfer that something happens in the middle of, and that has to come to its end unharmed."""

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from . import clients
from .metrics import Metrics
from .paths import CLIENTS, HOST, LIMIT, LONG_CLIP, PEERS
from .server import Server, address

PYTHON = PEERS / "venv/bin/python"

# Octets a second of the downloads that last: several times as long as an upgrade takes.
RATE = 5_000_000


class Transfer:
    """A client that fetches a long file again and again on one connection, until it is told to come to an end."""

    def __init__(self, server: Server, certificates: Path, host: str | None = None) -> None:
        self.server = server
        connect = address(host or server.lab.server["ipv4"])
        before = server.metrics().sum("bytes_sent_total")
        self.client: subprocess.Popen[str] = clients.start(
            server.lab, connect, certificates, ["/long.mp4"], "-until-told", "-timeout", f"{2 * LIMIT - 20:.0f}s"
        )
        self.start = server.wait_for("transfer under way", lambda m: m.sum("bytes_sent_total") > before + 10_000_000)

    def await_more(self, what: str, more: str, beyond: int = 0) -> Metrics:
        """Waits until a counter has grown from what it is now."""
        before = self.server.metrics().sum(more) + beyond
        assert self.client.poll() is None, f"{what}: the transfer has failed: {clients.finish(self.client)}"
        return self.server.wait_for(what, lambda m: m.sum(more) > before)

    def finish(self) -> None:
        """The connection has lived to the end, and every byte is right."""
        report = clients.finish(self.client, "\n")
        assert not report.get("error"), f"{report}\n{self.server.log()}"
        assert [answer["sha256"] for answer in report["responses"]] == [clients.sha256(LONG_CLIP)]


@contextmanager
def transfer(server: Server, certificates: Path, **options) -> Iterator[Transfer]:
    """A transfer in whose middle something happens; it has to survive that."""
    under_way = Transfer(server, certificates, **options)
    try:
        yield under_way
        under_way.finish()
    finally:
        if under_way.client.poll() is None:
            under_way.client.kill()
            under_way.client.wait()


def reattached(reason: str, times: int = 1) -> Callable[[Metrics], bool]:
    """Whether interfaces were opened again so often."""
    return lambda m: m.sum("io_reattach_total", reason=reason) >= times


class Download:
    """One by curl, slow enough to outlive upgrades."""

    def __init__(self, server: Server, certificates: Path, version: str, path: str = "/clip.mp4", rate: int = RATE) -> None:
        lab = server.lab
        words = [PYTHON, CLIENTS / "curl_slow.py", "-connect", address(lab.server["ipv4"]), "-name", HOST]
        words += ["-ca", certificates / "ca.pem", "-path", path, "-version", version, "-rate", rate]
        command = lab.inside("client", *map(str, words))
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line == "under way\n", f"{line!r} {self.process.communicate()}\n{server.log()}"

    def is_under_way(self) -> bool:
        """It has neither ended nor failed."""
        return self.process.poll() is None

    def finish(self, wanted: Path) -> None:
        """Every octet has come, and is right."""
        code = self.process.wait(LIMIT)
        assert self.process.stdout and self.process.stderr
        assert code == 0, self.process.stderr.read()
        # Some of its words may have been read with its first line.
        got = json.loads(self.process.stdout.read())
        assert (got["status"], got["bytes"]) == (200, wanted.stat().st_size), got
        assert got["sha256"] == clients.sha256(wanted)


@contextmanager
def download(server: Server, certificates: Path, version: str, **options) -> Iterator[Download]:
    """A download that is over when the test is."""
    made = Download(server, certificates, version, **options)
    try:
        yield made
    finally:
        made.process.kill()
        made.process.wait()


@contextmanager
def loop(server: Server, certificates: Path, path: str, wanted: Path) -> Iterator[subprocess.Popen[str]]:
    """Connections one after another; none may fail."""
    lab = server.lab
    words = [PYTHON, CLIENTS / "curl_loop.py", "-connect", address(lab.server["ipv4"]), "-name", HOST]
    words += ["-ca", certificates / "ca.pem", "-path", path, "-sha256", clients.sha256(wanted)]
    process = subprocess.Popen(
        lab.inside("client", *map(str, words)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
        out, err = process.communicate("", timeout=2 * LIMIT)
        assert process.returncode == 0, err
        report = json.loads(out)
        assert report["failures"] == [], f"{report}\n{server.log()}"
        assert report["connections"] >= 3, report
    finally:
        process.kill()
        process.wait()
