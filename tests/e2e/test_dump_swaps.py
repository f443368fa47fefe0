"""`expressway dump` and `top` while XDP programs come, go and are replaced under load: each datagram is shown once, or a note tells."""

import socket
import struct
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import foreign, links
from harness.captures import Dump, dumps, written
from harness.lab import Lab
from harness.namespace import udp_socket
from harness.paths import LIMIT
from harness.recv import PORT, Recv, receivers
from harness.top import packets, rows, tops

UDP = f"udp dst port {PORT}"


@pytest.fixture
def make_dump(tmp_path: Path) -> Iterator[Callable[..., Dump]]:
    """Starts captures."""
    with dumps(tmp_path) as start:
        yield start


@pytest.fixture
def make_recv(tmp_path: Path) -> Iterator[Callable[..., Recv]]:
    """Starts receivers in the server's namespace."""
    with receivers(tmp_path) as start:
        yield start


class Load:
    """Numbered datagrams from the client, in bursts, until it is ended."""

    def __init__(self, lab: Lab) -> None:
        self.sent = 0
        self._to = (lab.server["ipv4"], PORT)
        self._socket = udp_socket(lab.client_namespace, socket.AF_INET)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.is_set():
            for _ in range(16):
                self._socket.sendto(struct.pack("!I", self.sent), self._to)
                self.sent += 1
            time.sleep(0.002)

    def more(self, count: int) -> None:
        """Waits until as many more are sent."""
        until, deadline = self.sent + count, time.monotonic() + LIMIT
        while self.sent < until:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def end(self) -> int:
        """Ends it; how many there were."""
        self._over.set()
        self._thread.join()
        return self.sent


def numbers(file: Path) -> Counter[int]:
    """How often each number is in a capture."""
    return Counter(struct.unpack_from("!I", frame, 42)[0] for frame, _ in written(file))


def wait_captured(file: Path, sent: int) -> None:
    """Waits until a capture has as many, or nothing comes any more."""
    deadline, before = time.monotonic() + LIMIT, -1
    while (now := sum(numbers(file).values())) < sent and now != before:
        assert time.monotonic() < deadline
        before = now
        time.sleep(1)


def test_receivers_that_come_and_go_cost_no_packet_of_a_capture(make_lab, make_dump, make_recv, tmp_path: Path) -> None:
    """AF_XDP, the kernel's path, AF_XDP again."""
    lab, file = make_lab(), tmp_path / "all.pcapng"
    dump = make_dump(lab, "server", "-i", links.SERVER, "-w", file, "-U", UDP)
    load = Load(lab)
    for _ in range(3):
        load.more(300)
        recv = make_recv(lab, "--io", "copy")
        recv.wait_ready()
        load.more(300)
        recv.stop()
    load.more(300)
    sent = load.end()
    wait_captured(file, sent)
    refused = dump.is_refused()
    dump.end()
    shown = numbers(file)
    twice = {number: times for number, times in shown.items() if times > 1}
    assert not twice
    if not refused:
        missing = sorted(set(range(sent)) - set(shown))
        assert not missing, f"{len(missing)} of {sent}: {missing[:20]}\n{dump.log()}"


def socket_of(lab: Lab) -> socket.socket:
    """A socket that takes what no receiver does, so that no answers are sent."""
    taker = udp_socket(lab.server_namespace, socket.AF_INET)
    taker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    taker.bind(("0.0.0.0", PORT))
    return taker


def replace(lab: Lab, built: Path) -> None:
    """Puts a program on the server's interface in the place of the one that is there, as `ip` does."""
    words = ["ip", "-force", "link", "set", "dev", links.SERVER, "xdpdrv", "obj", built, "sec", "xdp"]
    subprocess.run(lab.inside("server", *words), check=True, capture_output=True, timeout=LIMIT)


def test_programs_of_others_that_take_turns_cost_no_packet(make_lab, make_dump, foreign_object, tmp_path: Path) -> None:
    lab, file = make_lab(), tmp_path / "all.pcapng"
    with socket_of(lab):
        foreign.attach(lab, foreign_object)
        dump = make_dump(lab, "server", "-i", links.SERVER, "-w", file, "-U", UDP)
        load = Load(lab)
        for _ in range(6):
            load.more(200)
            replace(lab, foreign_object)
        load.more(200)
        sent = load.end()
        wait_captured(file, sent)
        foreign.detach(lab)
    dump.end()
    assert numbers(file) == Counter(range(sent)), dump.log()
    # Each gap that there was is told at the end, and in the file where it was.
    gaps = dump.log().count(": gap: ")
    assert gaps == sum(comment.count(": gap: ") for comment in comments(file))
    assert (f", {gaps} gaps" in dump.log()) == (gaps > 0)


def comments(file: Path) -> list[str]:
    """Everything that a capture says of packets and interfaces, in its own words."""
    data, found, offset = file.read_bytes(), [], 0
    while offset < len(data):
        _, size = struct.unpack_from("<II", data, offset)
        found.append(data[offset : offset + size].decode("latin-1"))
        offset += size
    return found


def test_top_counts_each_packet_while_programs_take_turns(make_lab, foreign_object, tmp_path: Path) -> None:
    lab = make_lab()
    with socket_of(lab), tops(tmp_path) as make_top:
        foreign.attach(lab, foreign_object)
        top = make_top(lab, links.SERVER)
        load = Load(lab)
        for _ in range(6):
            load.more(200)
            replace(lab, foreign_object)
        load.more(200)
        sent = load.end()

        def received(document: dict) -> int:
            return sum(packets(row["received"]) for row in rows(document, protocol="udp", local_port=PORT))

        top.wait_for(lambda document: received(document) >= sent * 0.99, "nearly all of them")
        # In the moment that a program comes, what is under way may be counted at both or at none.
        assert abs(received(top.last()) - sent) <= 6 * 64
        foreign.detach(lab)
