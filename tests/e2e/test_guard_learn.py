"""Sources that `expressway guard` knows from before an attack, learned from the kernel's TCP handshakes."""

import random
import signal
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import links
from harness.guard import Guard, text
from harness.lab import Lab
from harness.namespace import run_inside
from harness.paths import run

TCP_PORT, UDP_PORT = 8000, 7000


class Host:
    """What runs on the server beside the filter, and who comes: a client that is known, and one that is not."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.address = lab.server["ipv4"]
        self.known = lab.client["ipv4"]
        self.unknown = self.known.rsplit(".", 1)[0] + ".77"
        links.ip(lab, "client", f"address add {self.unknown}/24 dev {links.CLIENT}")

        def listen() -> tuple[socket.socket, socket.socket]:
            feed = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            feed.bind((self.address, UDP_PORT))
            feed.setblocking(False)
            return socket.create_server((self.address, TCP_PORT), backlog=64), feed

        self.listener, self.feed = run_inside(lab.server_namespace, listen)

    def connect(self, source: str) -> None:
        """A TCP connection from that address, and its end."""

        def attempt() -> None:
            socket.create_connection((self.address, TCP_PORT), 10, (source, 0)).close()

        run_inside(self.lab.client_namespace, attempt)
        self.listener.accept()[0].close()

    def send(self, source: str, count: int) -> int:
        """Datagrams from that address; how many the server received."""

        def send() -> None:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
                sender.bind((source, 0))
                for _ in range(count):
                    sender.sendto(b"x", (self.address, UDP_PORT))

        run_inside(self.lab.client_namespace, send)
        received = 0
        try:
            while True:
                self.feed.recv(16)
                received += 1
        except BlockingIOError:
            return received

    def close(self) -> None:
        """Ends it."""
        self.listener.close()
        self.feed.close()


@pytest.fixture
def make_host(make_lab) -> Iterator:
    """Makes them; they end before their lab."""
    hosts: list[Host] = []

    def make(lab: Lab) -> Host:
        hosts.append(Host(lab))
        return hosts[-1]

    yield make
    for host in hosts:
        host.close()


def configuration(file: Path, more: str = "") -> str:
    """Nearly nothing passes that is not known."""
    rule = f'[[rule]]\nname = "feed"\nprotocol = "udp"\ndestination_port = {UDP_PORT}\nlimit = "1/s"\nburst = 1\nper = "source"\n'
    learn = f'[learn]\nfile = "{file}"\nafter = "1s"\nabove = "10/s"\ncalm = "1h"\nsave = "1s"\n{more}'
    return text() + rule + learn


def learn_known(guard: Guard, host: Host) -> None:
    """Has the known client come until it is known."""

    def comes_again(status: dict) -> bool:
        host.connect(host.known)
        return status["learn"]["learned"] == 1

    guard.wait_status(comes_again)


def test_known_sources_pass_in_an_attack_and_others_do_not(make_lab, make_guard, make_host, tmp_path: Path) -> None:
    lab, file = make_lab(), tmp_path / "state" / "learned"
    host = make_host(lab)
    guard = make_guard(lab, configuration(file))
    host.connect(host.known)
    status = guard.wait_status(lambda status: status["learn"]["candidates"] + status["learn"]["learned"] == 1)
    assert not status["learn"]["attack"]
    learn_known(guard, host)
    # Limits hold for it as long as there is no attack.
    assert host.send(host.known, 20) < 20

    def is_attacked(status: dict) -> bool:
        host.send(host.unknown, 100)
        return status["learn"]["attack"]

    guard.wait_status(is_attacked)
    assert "attack: preferring learned sources" in guard.log()
    assert host.send(host.known, 50) == 50
    assert host.send(host.unknown, 50) <= 2
    assert guard.metrics().sum("guard_packets_total", verdict="pass", reason="learned") >= 48
    # Who comes in the attack is not learned, though it is who it says.
    host.connect(host.unknown)
    status = guard.wait_status(lambda status: status["learn"]["late"] >= 1)
    assert (status["learn"]["learned"], status["learn"]["candidates"]) == (1, 0)
    guard.stop()
    assert f"\n{host.known}/32 # " in file.read_text() and host.unknown not in file.read_text()
    # The next one knows it from the first packet on; the file is an allow list too.
    again = make_guard(lab, configuration(file, 'attack = "on"\n'))
    assert again.status()["learn"]["attack"]
    assert host.send(host.known, 50) == 50
    again.reload(text(f'allow_file = "{file}"\ndefault = "drop"\n'), "configuration reloaded")
    assert host.send(host.known, 5) == 5
    assert host.send(host.unknown, 5) == 0


def checksum(data: bytes) -> int:
    """RFC 1071."""
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return 0xFFFF - total


def forged(source: str, destination: str, port: int, flags: int) -> bytes:
    """A TCP segment that claims to be from somebody."""
    addresses = socket.inet_aton(source) + socket.inet_aton(destination)
    sequence, acknowledged = random.getrandbits(32), random.getrandbits(32) if flags & 0x10 else 0
    head = struct.pack("!HHIIBBHHH", port, TCP_PORT, sequence, acknowledged, 5 << 4, flags, 64000, 0, 0)
    correct = checksum(addresses + struct.pack("!BBH", 0, 6, len(head)) + head)
    head = head[:16] + struct.pack("!H", correct) + head[18:]
    return struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(head), 0, 0, 64, 6, 0) + addresses + head


def test_forged_sources_are_not_learned(make_lab, make_guard, make_host, tmp_path: Path) -> None:
    lab, file = make_lab(), tmp_path / "learned"
    host = make_host(lab)
    guard = make_guard(lab, configuration(file, 'entries = 16\nattack = "off"\n'))
    learn_known(guard, host)
    before = guard.status()["learn"]["proofs"]

    def flood() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as sender:
            for number in range(500):
                source = f"203.0.113.{number % 250 + 1}"
                for flags in (0x02, 0x10, 0x18):
                    sender.sendto(forged(source, host.address, 10000 + number, flags), (host.address, 0))

    run_inside(lab.client_namespace, flood)
    guard.wait_status(lambda status: sum(one["packets"] for one in status["reasons"] if one["reason"] == "default") >= 1500)
    status = guard.status()["learn"]
    assert (status["proofs"], status["learned"], status["candidates"], status["full"]) == (before, 1, 0, 0)
    guard.stop()
    assert "203.0.113" not in file.read_text()


def test_learning_changes_while_it_runs_and_orders_say_what_is(make_lab, make_guard, make_host, tmp_path: Path) -> None:
    lab, file = make_lab(), tmp_path / "learned"
    host = make_host(lab)
    guard = make_guard(lab, configuration(file))
    learn_known(guard, host)
    # Another table, of networks.
    guard.reload(configuration(file, "entries = 32\nprefix4 = 24\n"), "configuration reloaded")
    guard.wait_status(lambda status: status["learn"]["learned"] == 1)
    assert guard.order("/attack", {"attack": "on"}) == (200, '{"attack":true}\n')
    assert host.send(host.unknown, 50) == 50, "of the same network"
    assert guard.order("/attack", {"attack": "off"}) == (200, '{"attack":false}\n')
    assert host.send(host.unknown, 50) < 50
    assert guard.order("/learn", {"sources": ["203.0.113.7", "2001:db8::1"]}) == (200, '{"learned":2}\n')
    guard.wait_status(lambda status: status["learn"]["candidates"] == 2)
    assert guard.order("/learn", {"sources": ["here"]})[0] == 400
    assert guard.order("/attack", {"attack": "perhaps"})[0] == 400
    guard.signal(signal.SIGHUP)
    guard.wait_log("configuration reloaded", 2)
    assert guard.status()["learn"]["candidates"] == 2
    guard.reload(text(), "configuration reloaded")
    assert guard.status()["learn"] is None
    assert guard.order("/attack", {"attack": "on"})[0] == 404


def test_a_file_that_cannot_be_written_is_a_warning(make_lab, make_guard, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    lab, folder = make_lab(), tmp_path / "state"
    folder.mkdir()
    run(["mount", "-t", "tmpfs", "tmpfs", folder])
    request.addfinalizer(lambda: run(["umount", "-l", folder]))
    guard = make_guard(lab, text() + f'[learn]\nfile = "{folder}/learned"\nsave = "1s"\n')
    guard.wait_status(lambda status: (folder / "learned").exists())
    run(["mount", "-o", "remount,ro", folder])
    guard.wait_log("learned sources not kept")
    assert guard.metrics().sum("guard_learned_unsaved") == 1
    run(["mount", "-o", "remount,rw", folder])
    guard.wait_status(lambda status: status["learn"]["error"] is None)
    assert guard.log().count("learned sources not kept") == 1
