"""Rooms of Media over QUIC in a lab, and their peers, each a process of moq-rs."""

import hashlib
import hmac
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from .lab import Lab
from .paths import BINARY, LIMIT, run
from .rtp import MediaRelay
from .webrtc import Peer

PORT = 4443
KEY = "00112233445566778899aabbccddeeff"


class MoqPeer(Peer):
    """A peer that publishes, subscribes, fetches or watches."""

    SCRIPT = "moq_peer.py"

    def event(self, name: str) -> dict:
        """The next event of that name."""
        return self.wait(lambda event: event["event"] == name, name)

    def groups(self, count: int) -> list[int]:
        """The numbers of the next groups that came whole, each as it was made, in order: moq-rs hears of two at a time in any."""
        found = []
        while len(found) < count:
            event = self.wait(lambda event: event["event"] in ("group", "wrong"), "a group")
            assert event["event"] == "group", event
            found.append(event["group"])
        return sorted(found)

    def groups_up_to(self, last: int) -> list[int]:
        """The numbers of those that came whole until this one or a newer one did, in order."""
        found: list[int] = []
        while not found or found[-1] < last:
            found += self.groups(1)
        return sorted(found)

    def command(self, line: str) -> None:
        """A command."""
        self.say(line)

    def finish(self) -> None:
        """Has it close its connection."""
        if self.process.poll() is None:
            self.process.stdin.close()
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                pass
        super().finish()


class Stranger(MoqPeer):
    """A peer that does what no well-behaved one does, on aioquic's streams."""

    SCRIPT = "moq_stranger.py"


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ca.pem, cert.pem and key.pem for the server's address, which is the same in every lab of a process."""
    return tmp_path_factory.mktemp("keys")


@pytest.fixture
def make_peer() -> Iterator[Callable[..., MoqPeer]]:
    """Starts peers; at the end none is left."""
    running: list[MoqPeer] = []

    def make(lab: Lab, role: str, *words: str, kind: type[MoqPeer] = MoqPeer) -> MoqPeer:
        running.append(kind(lab, role, *words))
        return running[-1]

    yield make
    for peer in running:
        peer.finish()


def room(lab: Lab, keys: Path, *more: str, head: str = "") -> str:
    """A room of Media over QUIC."""
    host = lab.server["ipv4"]
    if not (keys / "cert.pem").exists():
        run([BINARY, "cert", "--host", host, "--out", keys])
    moq = ["[moq]", f'listen = ["{host}:{PORT}"]', f'certificate = "{keys}/cert.pem"', f'private_key = "{keys}/key.pem"', *more]
    return "\n".join([head, *moq, "[[room]]", 'name = "studio"', "moq = true", ""])


def url(lab: Lab, path: str = "/studio") -> str:
    """Where a session goes."""
    return f"moqt://{lab.server['ipv4']}:{PORT}{path}"


def flows(relay: MediaRelay, publisher: MoqPeer, count: int) -> None:
    """Waits until so many subscriptions have reached the relay, and its own the publisher."""
    relay.wait_metric("relay_moq_subscriptions_total", count)
    publisher.command("used")
    publisher.event("used")


def gauge(relay: MediaRelay, name: str, value: int) -> None:
    """Waits until a gauge has that value."""
    deadline = time.monotonic() + LIMIT
    while (found := relay.metrics().sum(name)) != value:
        assert time.monotonic() < deadline, f"{name} {found}, not {value}\n{relay.page('/metrics')}"
        time.sleep(0.05)


def token(path: str, key: str = KEY) -> str:
    """A token in the format of EdgeAuth 2.0, for a URL."""
    fields = f"exp={int(time.time()) + 600}~acl={path}"
    return quote(f"{fields}~hmac={hmac.new(bytes.fromhex(key), fields.encode(), hashlib.sha256).hexdigest()}")
