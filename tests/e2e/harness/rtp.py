"""`expressway relay` as a process in a lab, and RTP (RFC 3550) as sent and read by the tests' own sockets."""

import json
import select
import socket
import struct
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .daemon import Daemon
from .lab import Lab
from .metrics import Metrics
from .namespace import give_room, run_inside, udp_socket
from .paths import BINARY, LIMIT

ADMIN = 9180


class MediaRelay(Daemon):
    """A running relay with `--json`; its admin listener is on the server's address."""

    def __init__(self, lab: Lab, folder: Path, rooms: str, *flags: str, prefix: tuple[str, ...] = ()) -> None:
        folder.mkdir()
        self.lab, self.config = lab, folder / "relay.toml"
        self.admin = f"127.0.0.1:{ADMIN}"
        self.write(rooms)
        words = [*prefix, BINARY, "relay", "--config", self.config, "--json", *flags]
        self.log_file, self.out = folder / "relay.log", folder / "relay.out"
        with self.log_file.open("ab") as log, self.out.open("wb") as out:
            self.process = subprocess.Popen(lab.inside("server", *words), stdout=out, stderr=log, text=True)

    def write(self, rooms: str) -> None:
        """Its configuration, with an admin listener."""
        head, room = rooms.split("[[room]]", 1)
        self.config.write_text(f'{head}[admin]\nlisten = "{self.admin}"\n[[room]]{room}')

    def lines(self) -> list[dict[str, Any]]:
        """What it printed."""
        return [json.loads(line) for line in self.out.read_text().splitlines()]

    def wait_ready(self, rooms: int = 1) -> "MediaRelay":
        """Waits for its ready lines."""
        deadline = time.monotonic() + LIMIT
        while len(self.lines()) < rooms:
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.02)
        return self

    def page(self, path: str) -> str:
        """A page of its admin listener."""

        def ask() -> str:
            with urllib.request.urlopen(f"http://{self.admin}{path}", timeout=LIMIT) as answer:
                return answer.read().decode()

        return run_inside(self.lab.server_namespace, ask)

    def rooms(self) -> list[dict[str, Any]]:
        """What it says of its rooms."""
        return json.loads(self.page("/rooms"))["rooms"]

    def metrics(self) -> Metrics:
        """Its counters."""
        return Metrics(self.page("/metrics"))

    def wait_metric(self, name: str, value: int, **labels: str) -> None:
        """Waits until a counter has at least that value."""
        deadline = time.monotonic() + LIMIT
        while (found := self.metrics().sum(name, **labels)) < value:
            assert time.monotonic() < deadline, f"{name} {found} of {value}\n{self.page('/metrics')}"
            time.sleep(0.05)

    def left(self) -> list[str]:
        """XDP programs."""
        return self.lab.programs("server")


@dataclass(frozen=True)
class Packet:
    """An RTP packet."""

    sequence: int
    payload: bytes
    timestamp: int = 0
    ssrc: int = 0x1000
    payload_type: int = 96
    marker: bool = False

    def build(self) -> bytes:
        """As bytes."""
        second = self.marker << 7 | self.payload_type
        numbers = (0x80, second, self.sequence & 0xFFFF, self.timestamp & 0xFFFFFFFF, self.ssrc)
        return struct.pack("!BBHII", *numbers) + self.payload

    @classmethod
    def read(cls, data: bytes) -> "Packet":
        """Of bytes."""
        first, second, sequence, timestamp, ssrc = struct.unpack("!BBHII", data[:12])
        assert first == 0x80, data
        return cls(sequence, data[12:], timestamp, ssrc, second & 0x7F, second >> 7 == 1)


def packets(count: int, first: int = 0, size: int = 1000, **more: Any) -> list[Packet]:
    """Packets whose payloads tell them apart."""
    return [
        Packet(first + number, struct.pack("!I", first + number) * (size // 4), 3000 * (first + number), **more)
        for number in range(count)
    ]


class Socket:
    """A UDP socket in the client's namespace."""

    def __init__(self, lab: Lab, host: str, port: int, interface: str | None = None) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.socket = udp_socket(lab.client_namespace, family, interface)
        give_room(self.socket)
        self.socket.bind((host, port))

    def send(self, sent: list[Packet], to: tuple[str, int], pause: float = 0.002) -> None:
        """Sends packets, not faster than a veth's ring is emptied."""
        for number, packet in enumerate(sent):
            self.socket.sendto(packet.build(), to)
            if number % 32 == 31:
                time.sleep(pause)

    def receive(self, timeout: float = LIMIT) -> bytes | None:
        """The next datagram, if one comes in time."""
        return self.socket.recv(65536) if select.select([self.socket], [], [], timeout)[0] else None

    def take(self, count: int) -> list[Packet]:
        """That many RTP packets, none of which may be missing."""
        taken = []
        while len(taken) < count:
            data = self.receive()
            assert data is not None, f"{len(taken)} of {count} came"
            if not is_rtcp(data):
                taken.append(Packet.read(data))
        return taken

    def reports(self, timeout: float = LIMIT) -> Iterator[tuple[int, int, bytes]]:
        """RTCP packets as they come: count or format, type, and what follows."""
        deadline = time.monotonic() + timeout
        while (left := deadline - time.monotonic()) > 0:
            data = self.receive(left)
            if data is not None and is_rtcp(data):
                yield from split(data)

    def report(self, kind: int, form: int | None = None) -> bytes:
        """The body of the next RTCP packet of that type, and of that count or format."""
        for found_form, found_kind, body in self.reports():
            if found_kind == kind and form in (None, found_form):
                return body
        raise AssertionError(f"no RTCP packet {kind}/{form} came")


def is_rtcp(data: bytes) -> bool:
    """By its type (RFC 5761, section 4)."""
    return 192 <= data[1] <= 223


def split(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """The packets of a compound packet (RFC 3550, section 6.1)."""
    while data:
        first, kind, words = struct.unpack("!BBH", data[:4])
        yield first & 0x1F, kind, data[4 : 4 + 4 * words]
        data = data[4 + 4 * words :]


def rtcp(kind: int, form: int, body: bytes) -> bytes:
    """An RTCP packet."""
    return struct.pack("!BBH", 0x80 | form, kind, len(body) // 4) + body


def receiver_report(ssrc: int, *blocks: bytes) -> bytes:
    """A receiver report with these blocks of 24 bytes."""
    return rtcp(201, len(blocks), struct.pack("!I", ssrc) + b"".join(blocks))


def nack(media: int, *sequences: int) -> bytes:
    """A request for packets (RFC 4585, section 6.2.1), behind an empty report."""
    entries = b"".join(struct.pack("!HH", sequence, 0) for sequence in sequences)
    return receiver_report(7) + rtcp(205, 1, struct.pack("!II", 7, media) + entries)


def pli(media: int) -> bytes:
    """A request for a key frame (RFC 4585, section 6.3.1), behind an empty report."""
    return receiver_report(7) + rtcp(206, 1, struct.pack("!II", 7, media))


def sender_report(ssrc: int, ntp: int, timestamp: int, sent: int = 0, octets: int = 0) -> bytes:
    """A sender report (RFC 3550, section 6.4.1)."""
    return rtcp(200, 0, struct.pack("!IQIII", ssrc, ntp, timestamp, sent, octets))
