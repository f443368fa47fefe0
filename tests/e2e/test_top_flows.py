"""`expressway top -i`: what it counts is what was sent, in floods too, and it leaves nothing."""

import fcntl
import json
import os
import pty
import select
import signal
import socket
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import bpf, foreign, links
from harness.clients import fetch
from harness.lab import Lab
from harness.namespace import udp_socket
from harness.paths import BINARY, LIMIT, PORT
from harness.server import address
from harness.top import Top, dropped, octets, packets, rows, tops

FEED = 7000
# Ethernet, IPv4 and UDP.
HEADERS = 14 + 20 + 8


@pytest.fixture
def make_top(make_lab, tmp_path: Path) -> Iterator[Callable[..., Top]]:
    """Starts them."""
    with tops(tmp_path) as start:
        yield start


def known(lab: Lab) -> None:
    """Both ends know each other, so that what comes is what a test sends."""
    lab.run("client", "ping", "-c1", lab.server["ipv4"])


def receiver(lab: Lab) -> socket.socket:
    """Something that takes what is sent."""
    made = udp_socket(lab.server_namespace, socket.AF_INET)
    made.bind((lab.server["ipv4"], FEED))
    return made


def send(lab: Lab, count: int, size: int, to: tuple[str, int] | None = None) -> int:
    """Sends datagrams from the client's kernel, and returns their port."""
    with udp_socket(lab.client_namespace, socket.AF_INET) as sender:
        sender.connect(to or (lab.server["ipv4"], FEED))
        for _ in range(count):
            sender.send(bytes(size))
        return sender.getsockname()[1]


def received(lab: Lab) -> int:
    """Packets that the server's interface has counted."""
    return int(lab.run("server", "cat", f"/sys/class/net/{links.SERVER}/statistics/rx_packets"))


def settled(lab: Lab) -> int:
    """The same, once its ring has been worked off, which a busy machine may do late."""
    last, since = received(lab), time.monotonic()
    while time.monotonic() - since < 0.5:
        time.sleep(0.05)
        now = received(lab)
        if now != last:
            last, since = now, time.monotonic()
    return last


def live(lab: Lab, count: int, *words: str) -> int:
    """Sends live frames to the server and returns how many its interface took."""
    to = ["--to", address(lab.server["ipv4"], FEED), "--count", str(count), "--io", "live", "--json"]
    return json.loads(lab.run("client", BINARY, "--log-level", "error", "gen", "udp", *to, *words))["sent"]


def test_each_packet_of_a_flow_is_counted_with_its_octets(make_lab, make_top) -> None:
    lab = make_lab()
    known(lab)
    top = make_top(lab, links.SERVER)
    sender = make_top(lab, links.CLIENT, role="client")
    with receiver(lab):
        port = send(lab, 1234, 100)
        for one, way, ends in (
            (top, "received", {"remote_port": port, "local_port": FEED}),
            (sender, "sent", {"local_port": port, "remote_port": FEED}),
        ):
            found = one.wait_for(
                lambda document, ends=ends, way=way: any(
                    packets(row[way]) == 1234 for row in rows(document, protocol="udp", **ends)
                ),
                "1234 packets",
            )
            (row,) = rows(found, **ends)
            assert row[way]["kernel"] == {"packets": 1234, "bytes": 1234 * (100 + HEADERS)}
            assert packets(found["totals"][way]) >= 1234


def queue(document: dict, direction: str, number: int | None) -> dict:
    """A queue of the server's interface."""
    (found,) = [one for one in document["queues"] if (one["direction"], one["queue"]) == (direction, number)]
    assert found["device"] == links.SERVER
    return found


def test_traffic_is_told_by_queue_so_that_one_with_all_of_it_is_seen(make_lab, make_top) -> None:
    lab = make_lab(queues=2)
    known(lab)
    top = make_top(lab, links.SERVER)
    # Those without a packet are there too.
    for direction in ("in", "out"):
        assert {queue(top.last(), direction, number)["queue"] for number in (0, 1)} == {0, 1}
    queues = lambda document: sorted((queue(document, "in", number) for number in (0, 1)), key=lambda one: one["share"])  # noqa: E731

    def is_of_flow(busy: dict) -> bool:
        """Neighbour discovery and the like have no share worth mentioning."""
        rate = busy["rates"][1]
        return busy["share"] >= 0.99 and rate["bits"] > 0.9 * 8 * (100 + HEADERS) * rate["packets"]

    with receiver(lab), udp_socket(lab.client_namespace, socket.AF_INET) as sender:
        # A flow has one queue (the peer's transmit queue, which a hash of the flow chooses).
        sender.connect((lab.server["ipv4"], FEED))
        deadline = time.monotonic() + LIMIT
        while not is_of_flow(busy := queues(top.last())[1]):
            assert time.monotonic() < deadline, top.last()["queues"]
            for _ in range(50):
                sender.send(bytes(100))
            time.sleep(0.02)
        rate = busy["rates"][1]
        assert rate["packets"] > 0 and busy["kernel"] == rate, busy
        assert busy["af_xdp"]["packets"] == busy["xdp"]["packets"] == busy["dropped"]["packets"] == 0
        # Many flows have both.
        while queues(top.last())[0]["share"] < 0.2:
            assert time.monotonic() < deadline, top.last()["queues"]
            for _ in range(50):
                send(lab, 4, 100)
    # What leaves has its queue as well: the answers to pings.
    lab.run("client", "ping", "-c", "20", "-i", "0.01", lab.server["ipv4"])
    top.wait_for(
        lambda document: any(queue(document, "out", number)["kernel"]["packets"] > 0 for number in (0, 1)), "the answers"
    )
    assert not [one for one in top.last()["queues"] if one["queue"] is None], "all are known here"
    shown = lab.run("server", BINARY, "top", "-i", links.SERVER, "--once", "--interval", "200ms")
    assert f"{links.SERVER} rx 0" in shown and f"{links.SERVER} tx 1" in shown


def test_super_packets_count_as_those_on_the_wire(make_lab, make_top) -> None:
    lab = make_lab()
    known(lab)
    sender = make_top(lab, links.CLIENT, role="client")
    with receiver(lab), udp_socket(lab.client_namespace, socket.AF_INET) as made:
        made.connect((lab.server["ipv4"], FEED))
        # UDP_SEGMENT: ten datagrams of 1000 octets in one call.
        made.setsockopt(socket.IPPROTO_UDP, 103, 1000)
        made.send(bytes(10_000))
        port = made.getsockname()[1]
        found = sender.wait_for(lambda document: rows(document, local_port=port), "the flow")
    (row,) = rows(found, local_port=port)
    assert row["sent"]["kernel"] == {"packets": 10, "bytes": 10 * (1000 + HEADERS)}


def test_a_heavy_flow_stays_in_a_flood_of_others_and_all_are_counted(make_lab, make_top) -> None:
    lab = make_lab()
    known(lab)
    top = make_top(lab, links.SERVER)
    began = received(lab)
    before = packets(top.last()["totals"]["received"])
    flood = lab.inside(
        "client", BINARY, "--log-level", "error", "gen", "udp", "--to", address(lab.server["ipv4"], FEED + 1),
        "--rate", "100k", "--count", "1000000", "--flows", "1000000", "--source", "203.0.113.0/24",
        "--io", "live", "--json",
    )
    with subprocess.Popen(flood, stdout=subprocess.PIPE, text=True) as process, receiver(lab):
        sender = udp_socket(lab.client_namespace, socket.AF_INET)
        sender.connect((lab.server["ipv4"], FEED))
        port = sender.getsockname()[1]
        heavy = 0
        # A hundredth of the flood's packets is more than enough to stay.
        while process.poll() is None:
            for _ in range(20):
                sender.send(bytes(1000))
            heavy += 20
            time.sleep(0.001)
        assert process.stdout
        flooded = json.loads(process.stdout.read())["sent"]
        sender.close()
        # The device may not take all of them.
        assert flooded > 100_000
    # Rings on the way may be full; what arrived is counted by the interface, too: in floods up to 0.01 % more than here.
    arrived = settled(lab) - began
    found = top.wait_for(
        lambda document: packets(document["totals"]["received"]) - before >= arrived * 0.999, f"nearly all {arrived}"
    )
    # The hosts may have had something to say to each other besides.
    assert packets(found["totals"]["received"]) - before <= min(arrived, flooded + heavy) + 100
    # Until it is heavy it may lose its place, and what was counted of it; how much that is depends on how busy the machine is.
    least = (heavy - max(0, flooded + heavy - arrived)) // 2
    found = top.wait_for(
        lambda document: any(packets(row["received"]) >= least for row in rows(document, remote_port=port)),
        f"half of the heavy flow's {heavy}",
    )
    (row,) = rows(found, remote_port=port)
    counted = row["received"]["kernel"]["packets"]
    assert 0 < counted <= heavy, f"{counted} of {heavy}"
    assert found["totals"]["evictions"] + found["totals"]["not_held"] > 0


def test_drops_have_their_reason(make_lab, make_top) -> None:
    lab = make_lab()
    known(lab)
    top = make_top(lab, links.SERVER)
    # A closed port; the kernel stops answering long before the last, and drops all of them.
    with udp_socket(lab.client_namespace, socket.AF_INET) as sender:
        for _ in range(50):
            sender.sendto(b"x", (lab.server["ipv4"], 9))
    top.wait_for(lambda document: dropped(document, "kernel", "no_socket") == 50, "50 drops")
    row = top.wait_for(lambda document: any(row["dropped"] for row in rows(document, local_port=9)), "the flow's")
    assert rows(row, local_port=9)[0]["dropped"] == 50


def test_two_at_once_see_the_same_and_one_that_is_killed_leaves_nothing(make_lab, make_top) -> None:
    lab = make_lab()
    known(lab)
    first, second = make_top(lab, links.SERVER), make_top(lab, links.SERVER)
    with receiver(lab):
        port = send(lab, 500, 10)
        for one in (first, second):
            one.wait_for(
                lambda document: any(packets(row["received"]) == 500 for row in rows(document, remote_port=port)),
                "500 packets",
            )
        objects = first.objects()
        assert any(kind == "link" for kind, _ in objects)
        first.kill()
        deadline = time.monotonic() + LIMIT
        while left := [one for one in objects if bpf.exists(*one)]:
            assert time.monotonic() < deadline, f"it left {left}"
            time.sleep(0.05)
        assert not lab.programs("server")
        port = send(lab, 300, 10)
        second.wait_for(
            lambda document: any(packets(row["received"]) == 300 for row in rows(document, remote_port=port)),
            "what came after",
        )


def test_a_program_that_comes_and_goes_is_followed(make_lab, make_top, foreign_object) -> None:
    lab = make_lab()
    known(lab)
    top = make_top(lab, links.SERVER)
    assert top.last()["program"] is None
    with receiver(lab):
        for attach in (True, False, True):
            (foreign.attach if attach else lambda lab, _: foreign.detach(lab))(lab, foreign_object)
            found = top.wait_for(
                lambda document, attach=attach: bool(top.documents[-1]["program"]) == attach, "the change"
            )
            found = top.last()
            if attach:
                assert found["program"]["name"] == "foreign_pass"
                traceable = not any("not counted: what the XDP program" in note for note in found["notes"])
                assert found["program"]["traced"] == traceable
            # What passes is counted once, whether the program is traced or not.
            port = send(lab, 200, 50)
            one = top.wait_for(
                lambda document, port=port: any(
                    packets(row["received"]) >= 200 for row in rows(document, remote_port=port)
                ),
                "200 packets",
            )
            (row,) = rows(one, remote_port=port)
            assert row["received"]["kernel"]["packets"] == packets(row["received"]) == 200
    foreign.detach(lab)


def test_an_interface_may_go_and_come_back(make_lab, make_top) -> None:
    lab = make_lab()
    lab.add_extra_link()
    top = make_top(lab, "extra0")
    lab.run("client", "ping", "-c3", "-i0.2", "198.51.100.1")
    before = packets(top.wait_for(lambda one: packets(one["totals"]["received"]) >= 3, "pings")["totals"]["received"])
    lab.run("server", "ip", "link", "delete", "extra0")
    top.wait_for(lambda document: not document["present"], "its end")
    lab.add_extra_link()
    top.wait_for(lambda _: top.last()["present"], "its return")
    lab.run("client", "ping", "-c3", "-i0.2", "198.51.100.1")
    top.wait_for(lambda one: one["present"] and packets(one["totals"]["received"]) >= before + 3, "pings again")


def test_who_may_not_is_told_what_is_needed(make_lab) -> None:
    lab = make_lab()
    for prefix, words, text in (
        (["setpriv", "--reuid", "65534", "--clear-groups"], ["-i", links.SERVER], "run as root or with CAP_BPF"),
        ([], ["-i", "nothing0"], "no such interface"),
        ([], ["-i", "../etc"], "no such interface"),
        ([], ["-i", links.SERVER, "--filter", "10.0.0.0/99"], "is not a network"),
        ([], ["--replay", "/etc/passwd"], "not a recording"),
    ):
        command = lab.inside("server", *prefix, BINARY, "top", *words, "--once")
        result = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
        assert result.returncode in (1, 2), words
        assert text in result.stderr, result.stderr
        assert len(result.stderr.splitlines()) == 1, result.stderr


def test_a_recording_shows_what_was_seen(make_lab, make_top, tmp_path: Path) -> None:
    lab = make_lab()
    known(lab)
    file = tmp_path / "samples"
    top = make_top(lab, links.SERVER, "--record", str(file))
    with receiver(lab):
        port = send(lab, 100, 10)
        top.wait_for(
            lambda document: any(packets(row["received"]) == 100 for row in rows(document, remote_port=port)), "them"
        )
    top.stop()
    # As if it had been killed in the middle of a sample.
    content = file.read_bytes()
    file.write_bytes(content + content.splitlines()[-1][:50])
    replay = [BINARY, "top", "--replay", file, "--once"]
    document = json.loads(subprocess.run([*replay, "--json"], capture_output=True, check=True).stdout)
    (row,) = rows(document, remote_port=port)
    assert packets(row["received"]) == 100
    assert octets(row["received"]) == 100 * (10 + HEADERS)
    lines = subprocess.run([*replay, "--by", "host"], capture_output=True, text=True, check=True).stdout
    assert lab.client["ipv4"] in lines
    assert "AF_XDP sockets" in lines


def test_sockets_of_a_gateway_are_shown_with_their_rings_and_owner(make_lab, make_top, make_server) -> None:
    lab = make_lab()
    server = make_server(lab, mode="copy")
    top = make_top(lab, links.SERVER)
    document = top.wait_for(lambda document: document["sockets"], "its sockets")
    index = int(lab.run("server", "cat", f"/sys/class/net/{links.SERVER}/ifindex"))
    ours = [one for one in document["sockets"] if one["own_namespace"] and one["interface"] == index]
    assert ours
    for one in ours:
        assert server.process.pid in [holder["process"] for holder in one["holders"]]
        assert "expressway" in [holder["name"] for holder in one["holders"]]
        assert one["rx"]["entries"] > 0
        assert one["fill"]["used"] > 0, "frames to receive into"
        assert one["rx"]["used"] <= one["rx"]["entries"]
    assert document["program"]["name"] == "expressway_udp"


def test_a_gateways_connections_are_af_xdps(make_lab, make_top, make_server, certificates) -> None:
    lab = make_lab()
    make_server(lab, mode="copy")
    top = make_top(lab, links.SERVER, "--by", "connection", "--quic-port", str(PORT))
    top.needs_tracing()
    assert top.last()["program"]["traced"]
    (answer,) = fetch(lab, "quicgo", address(lab.server["ipv4"]), certificates, ["/clip.mp4"])
    document = top.wait_for(
        lambda document: any(octets(row["sent"]) > answer.bytes for row in document["rows"]), "what it sent"
    )
    (row,) = document["rows"]
    assert row["protocol"] == "quic"
    # The kernel sends until the neighbour is known.
    assert row["sent"]["af_xdp"]["bytes"] > 0.9 * octets(row["sent"])
    assert row["received"]["af_xdp"]["packets"] > 0
    assert len(row["cid"]) == 32


def test_live_frames_to_a_receiver_in_af_xdp_mode_are_counted_exactly(make_lab, make_top, tmp_path: Path) -> None:
    lab = make_lab()
    known(lab)
    log = (tmp_path / "recv.log").open("wb")
    command = lab.inside("server", BINARY, "recv", "--listen", address(lab.server["ipv4"], FEED), "--io", "copy", "--json")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process:
        try:
            top = make_top(lab, links.SERVER)
            top.needs_tracing()
            sent = live(lab, 20_000, "--rate", "20k", "--source", lab.client["ipv4"])
            document = top.wait_for(
                lambda document: any(packets(row["received"]) >= sent for row in rows(document, local_port=FEED)),
                "all of them",
            )
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=LIMIT)
    (row,) = rows(document, local_port=FEED)
    # A full ring is a drop, and counted as such.
    taken, lost = row["received"]["af_xdp"]["packets"], row["received"]["dropped"]["packets"]
    assert taken + lost == sent


class Screen:
    """`expressway top` on a terminal of its own."""

    def __init__(self, lab: Lab, *words: str) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 140, 0, 0))
        self.slave = slave
        self.modes = termios.tcgetattr(slave)
        command = lab.inside("server", BINARY, "top", *words)
        environment = {**os.environ, "TERM": "xterm-256color"}
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        self.output = b""

    def wait_for(self, text: bytes) -> None:
        """Waits until something has been written since the last call."""
        deadline = time.monotonic() + LIMIT
        while text not in self.output:
            assert time.monotonic() < deadline, f"never {text!r}: {self.output[-3000:]!r}"
            if select.select([self.master], [], [], 0.1)[0]:
                self.output += os.read(self.master, 65536)
        self.output = self.output.split(text, 1)[1]

    def end(self) -> int:
        """Its exit code, when the terminal is as it was."""
        deadline = time.monotonic() + LIMIT
        while self.process.poll() is None:
            assert time.monotonic() < deadline
            if select.select([self.master], [], [], 0.1)[0]:
                self.output += os.read(self.master, 65536)
        while select.select([self.master], [], [], 0.1)[0]:
            self.output += os.read(self.master, 65536)
        assert b"\x1b[?1049l" in self.output, "the alternate screen is left"
        assert b"\x1b[?25h" in self.output, "the cursor is shown"
        assert termios.tcgetattr(self.slave)[:4] == self.modes[:4]
        return self.process.returncode


@pytest.fixture
def make_screen(make_lab) -> Iterator[Callable[..., Screen]]:
    """Makes them; none outlives its test."""
    made: list[Screen] = []

    def make(lab: Lab, *words: str) -> Screen:
        made.append(Screen(lab, *words))
        return made[-1]

    yield make
    for screen in made:
        screen.process.kill()
        screen.process.wait()


@pytest.mark.parametrize("end", ["q", "\x03", signal.SIGTERM, signal.SIGHUP])
def test_the_terminal_is_as_it_was_however_it_ends(make_lab, make_screen, end: str | signal.Signals) -> None:
    lab = make_lab()
    screen = make_screen(lab, "-i", links.SERVER, "--interval", "100ms")
    screen.wait_for(b"\x1b[?1049h")
    screen.wait_for(b"server0")
    os.write(screen.master, b"h")
    # Words, since blanks that are there already are not written again.
    screen.wait_for(b"bars")
    os.write(screen.master, b"x/udp 443\r")
    screen.wait_for(b"removes")
    # A resize is drawn.
    fcntl.ioctl(screen.slave, termios.TIOCSWINSZ, struct.pack("HHHH", 20, 60, 0, 0))
    screen.process.send_signal(signal.SIGWINCH)
    screen.wait_for(b"server0")
    if isinstance(end, str):
        os.write(screen.master, end.encode())
    else:
        screen.process.send_signal(end)
    assert screen.end() == 0
