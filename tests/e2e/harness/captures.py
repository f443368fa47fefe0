"""Captures: written by hand, by `expressway dump`, and read by Wireshark's tools."""

import re
import struct
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from .daemon import Daemon, finish_all
from .lab import Lab
from .paths import BINARY, LIMIT


def quiet(command: Sequence[str | Path], *, given: bytes | None = None) -> str:
    """What a tool prints that has nothing to complain of. That it is run by root is no complaint."""
    words = [str(word) for word in command]
    result = subprocess.run(words, input=given, capture_output=True, timeout=LIMIT, check=False)
    said = [line for line in result.stderr.decode().splitlines() if line and not line.startswith("Running as user")]
    assert result.returncode == 0 and not said, f"{' '.join(words)}: exit code {result.returncode}\n{said}"
    return result.stdout.decode()


def tshark(file: Path | str, *fields: str, show: str = "", given: bytes | None = None) -> list[list[str]]:
    """Fields of a capture's packets."""
    words = [word for field in fields for word in ("-e", field)]
    display = ["-Y", show] if show else []
    text = quiet(["tshark", "-n", "-r", file, *display, "-T", "fields", *words], given=given)
    return [line.split("\t") for line in text.splitlines()]


def count(file: Path) -> int:
    """How many packets capinfos finds."""
    text = quiet(["capinfos", "-c", "-M", file])
    found = re.search(r"Number of packets:\s+(\d+)", text)
    assert found, text
    return int(found[1])


def frame(number: int, size: int = 100, port: int = 40007) -> bytes:
    """An Ethernet frame with a UDP datagram of that size."""
    payload = number.to_bytes(4, "big").ljust(size, b"\xfe")
    udp = struct.pack("!HHHH", port, 50000, 8 + size, 0) + payload
    header = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), number % 65536, 0, 64, 17, 0, b"\xc0\0\2\1", b"\xc0\0\2\2")
    total = sum(struct.unpack("!10H", header))
    total = (total & 0xFFFF) + (total >> 16)
    header = header[:10] + struct.pack("!H", 0xFFFF - ((total & 0xFFFF) + (total >> 16))) + header[12:]
    return bytes.fromhex("020000000002 020000000001 0800") + header + udp


def write_pcap(file: Path, frames: Iterable[bytes]) -> Path:
    """A pcap file with these frames, a millisecond apart."""
    parts = [struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 262144, 1)]
    for number, each in enumerate(frames):
        parts.append(struct.pack("<IIII", 1_800_000_000 + number // 1000, number % 1000 * 1000, len(each), len(each)) + each)
    file.write_bytes(b"".join(parts))
    return file


def written(file: Path) -> list[tuple[bytes, str]]:
    """The packets of a pcapng file of ours with their comments, where there is no Wireshark."""
    data, found, offset = file.read_bytes(), [], 0
    while offset < len(data):
        kind, size = struct.unpack_from("<II", data, offset)
        assert size >= 12 and size % 4 == 0 and data[offset + size - 4 : offset + size] == struct.pack("<I", size), offset
        if kind == 6:  # Enhanced Packet Block
            (length,) = struct.unpack_from("<I", data, offset + 20)
            option, comment = offset + 28 + (length + 3) // 4 * 4, ""
            while option < offset + size - 4:
                code, held = struct.unpack_from("<HH", data, option)
                if code == 1:
                    comment = data[option + 4 : option + 4 + held].decode()
                option += 4 + (held + 3) // 4 * 4
            found.append((data[offset + 28 : offset + 28 + length], comment))
        offset += size
    return found


class Dump(Daemon):
    """A running `expressway dump`."""

    def __init__(self, lab: Lab, folder: Path, role: str, *words: str | Path) -> None:
        self.lab, self.role = lab, role
        folder.mkdir()
        self.log_file = folder / "dump.log"
        self.output = folder / "dump.out"
        command = lab.inside(role, BINARY, "dump", *words)
        with self.log_file.open("wb") as log, self.output.open("wb") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=log, text=True)
        self.wait_log("listening on ")

    def is_refused(self) -> bool:
        """Whether the kernel takes no programs at entry and exit of others, so that what AF_XDP takes is not seen."""
        return "a security policy of this kernel refuses such programs" in self.log()

    def lines(self) -> list[str]:
        """What it has printed."""
        return self.output.read_text().splitlines()

    def counts(self) -> tuple[int, int]:
        """Packets captured and lost, as it says in the end."""
        found = re.search(r"^(\d+) packets captured, (\d+) lost(?:, gaps while XDP programs came: \d+)?;", self.log(), re.MULTILINE)
        assert found, self.log()
        return int(found[1]), int(found[2])

    def end(self) -> int:
        """Ends it well; the number of packets, of which none was lost."""
        self.stop()
        captured, lost = self.counts()
        assert lost == 0, self.log()
        return captured


@contextmanager
def dumps(folder: Path) -> Iterator[Callable[..., Dump]]:
    """Starts captures; at the end each has to be alive, unless the test has ended it, and to stop cleanly."""
    running: list[Dump] = []

    def start(lab: Lab, role: str, *words: str | Path) -> Dump:
        running.append(Dump(lab, folder / f"dump-{len(running)}", role, *words))
        return running[-1]

    try:
        yield start
    finally:
        finish_all(running)
