"""What is on a wire, by tcpdump."""

import signal
import struct
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from .lab import Lab
from .paths import LIMIT, run


@dataclass
class Datagram:
    """A UDP datagram of a capture."""

    time: float
    source: tuple[str, int]
    destination: tuple[str, int]
    ttl: int
    to_mac: str
    payload: bytes

    @property
    def probe(self) -> tuple[int, int, int, int]:
        """Sequence, time, flow and magic of the header."""
        return struct.unpack("!QQII", self.payload[:24])


def address_of(packed: bytes) -> str:
    """An address as people write it."""
    import ipaddress

    return str(ipaddress.ip_address(packed))


def datagram(time_: float, frame: bytes) -> Datagram:
    """The UDP datagram of an Ethernet frame without VLAN tags, IP options and extension headers."""
    if frame[12:14] == b"\x08\x00":
        ttl, source, to, udp = frame[22], frame[26:30], frame[30:34], frame[34:]
    else:
        assert frame[12:14] == b"\x86\xdd", frame
        ttl, source, to, udp = frame[21], frame[22:38], frame[38:54], frame[54:]
    ports = struct.unpack_from("!HHH", udp)
    return Datagram(
        time=time_,
        source=(address_of(source), ports[0]),
        destination=(address_of(to), ports[1]),
        ttl=ttl,
        to_mac=frame[:6].hex(":"),
        payload=udp[8 : ports[2]],
    )


def datagrams(file: Path) -> list[Datagram]:
    """The UDP datagrams of a pcap file that tcpdump wrote (microseconds, Ethernet)."""
    data = file.read_bytes()
    assert data[:4] == b"\xd4\xc3\xb2\xa1", "tcpdump writes little-endian pcap here"
    found, offset = [], 24
    while offset < len(data):
        seconds, micro, length, whole = struct.unpack_from("<IIII", data, offset)
        assert length == whole, "captured whole"
        found.append(datagram(seconds + micro / 1e6, data[offset + 16 : offset + 16 + length]))
        offset += 16 + length
    return found


class Sniffer:
    """A running tcpdump on an interface of a lab, that writes what the filter lets through."""

    def __init__(self, lab: Lab, role: str, interface: str, file: Path, expression: str) -> None:
        self.file = file
        # As root it would become another user before it writes.
        command = lab.inside(
            role, "tcpdump", "-Z", "root", "-n", "-U", "--immediate-mode", "-B", "65536",
            "-i", interface, "-w", file, expression,
        )
        self.said = ""
        self._listening = threading.Event()
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self._listening.wait(LIMIT) and "listening on" in self.said, self.said

    def _read(self) -> None:
        assert self.process.stderr
        for line in self.process.stderr:
            self.said += line
            if "listening on" in line:
                self._listening.set()
        self._listening.set()

    def end(self) -> list[Datagram]:
        """Ends it once nothing comes any more, and gives what it saw. It has lost nothing."""
        # What is on its way to it is in its ring.
        size = -1
        while (now := self.file.stat().st_size) != size:
            size = now
            time.sleep(0.5)
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(LIMIT) == 0, self.said
        self._reader.join(LIMIT)
        assert "\n0 packets dropped by kernel" in self.said, self.said
        return datagrams(self.file)

    def stop(self, expected: int) -> list[Datagram]:
        """Waits until it has seen as many, ends it and gives what it saw. Every checksum has to be right."""
        deadline = time.monotonic() + LIMIT
        while len(found := datagrams_so_far(self.file)) < expected and time.monotonic() < deadline:
            time.sleep(0.05)
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(LIMIT) == 0, self.said
        self._reader.join(LIMIT)
        assert "\n0 packets dropped by kernel" in self.said, self.said
        found = datagrams(self.file)
        shown = run(["tcpdump", "-n", "-vv", "-r", self.file])
        assert "bad udp cksum" not in shown and "bad cksum" not in shown, shown
        assert shown.count("udp sum ok") == len(found), shown[:2000]
        return found


def datagrams_so_far(file: Path) -> list[Datagram]:
    """As [`datagrams`], of a file that is being written."""
    try:
        return datagrams(file)
    except (FileNotFoundError, AssertionError, struct.error, IndexError):
        return []
