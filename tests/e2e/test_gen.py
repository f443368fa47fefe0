"""`expressway gen udp` over a veth, with tcpdump and ordinary sockets at the other end."""

import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import links
from harness.agent import UNPRIVILEGED
from harness.daemon import Daemon
from harness.lab import Lab
from harness.namespace import run_inside, udp_socket
from harness.paths import BINARY, LIMIT, open_to_all
from harness.recv import receivers
from harness.server import address
from harness.sniffer import Datagram, Sniffer

PORT = 7000
MAGIC = 0x45585047
IO = ["udp", "copy", "generic", "hybrid", "live"]


def command(lab: Lab, *words: str | Path, role: str = "client", prefix: tuple[str, ...] = ()) -> list[str]:
    """The command line of a generator in a lab."""
    return lab.inside(role, *prefix, BINARY, "--log-level", "error", "gen", "udp", *words)


def gen(lab: Lab, *words: str | Path, to: str | None = None, code: int = 0, **where) -> dict:
    """Runs a generator to its end and returns its report."""
    to = to or address(lab.server["ipv4"], PORT)
    line = command(lab, "--to", to, *words, "--json", **where)
    result = subprocess.run(line, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert result.returncode == code, f"{line}: {result.returncode}\n{result.stdout}\n{result.stderr}"
    return json.loads(result.stdout)


def refused(lab: Lab, *words: str | Path, to: str | None = None, code: int = 1, **where) -> str:
    """Runs a generator that has to fail with one line, which is returned."""
    line = command(lab, "--to", to or address(lab.server["ipv4"], PORT), *words, **where)
    result = subprocess.run(line, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert (result.returncode, result.stdout) == (code, ""), f"{line}: {result}"
    (error,) = result.stderr.splitlines()
    assert error.startswith("expressway: "), error
    return error


@pytest.fixture
def sniff(tmp_path: Path) -> Iterator:
    """Starts tcpdump on the server's interface."""
    sniffers: list[Sniffer] = []

    def start(lab: Lab, expression: str = f"udp and dst portrange {PORT}-{PORT + 100}") -> Sniffer:
        file = tmp_path / f"capture-{len(sniffers)}.pcap"
        sniffers.append(Sniffer(lab, "server", links.SERVER, file, expression))
        return sniffers[-1]

    yield start
    for sniffer in sniffers:
        sniffer.process.kill()
        sniffer.process.wait()


def check_report(report: dict, sent: int) -> None:
    """Everything was sent. How late is the machine's affair."""
    assert (report["offered"], report["sent"], report["unsent"], report["refused"]) == (sent, sent, 0, 0), report
    assert report["lateness_ns"]["count"] == sent
    assert report["ended"] == "done"


def check_sequences(found: list[Datagram], flows: int) -> None:
    """Each flow's datagrams are there once and in order."""
    assert {one.probe[3] for one in found} == {MAGIC}
    for flow in range(flows):
        sequences = [one.probe[0] for one in found if one.probe[2] == flow]
        assert sequences == list(range(len(sequences))), f"flow {flow}: {sequences}"


@pytest.mark.parametrize("family", ["ipv4", "ipv6"])
@pytest.mark.parametrize("io", IO)
def test_what_is_sent_arrives_whole_with_its_number_and_time(make_lab, sniff, io: str, family: str) -> None:
    lab = make_lab()
    to = address(lab.server[family], PORT)
    sniffer = sniff(lab)
    before = time.time_ns()
    words = ["--rate", "2k", "--seconds", "0.5", "--flows", "3", "--size", "100", "--payload", "sequence", "--ttl", "9"]
    report = gen(lab, *words, "--io", io, to=to)
    check_report(report, 1000)
    assert report["io"] == ("gso" if io == "udp" else io)
    if io in ("copy", "generic"):
        # A stale neighbour is confirmed by the kernel once a second.
        assert report["fallback"] < 100
    found = sniffer.stop(1000)
    assert len(found) == 1000
    check_sequences(found, 3)
    body = bytes(range(24, 100))
    for one in found:
        assert (one.source, one.ttl) == ((lab.client[family], 50_000 + one.probe[2]), 9)
        assert one.destination == (lab.server[family], PORT)
        assert (len(one.payload), one.payload[24:]) == (100, body)
        assert before < one.probe[1] < time.time_ns()
    # The times when they were due are those of the schedule, whenever they were sent.
    times = sorted(one.probe[1] for one in found)
    for number, due in enumerate(times):
        assert abs(due - times[0] - number * 500_000) < 100_000, f"{number}: {due - times[0]}"


@pytest.mark.parametrize("way", ["gso", "sendmmsg", "sendmsg"])
def test_each_way_of_the_kernel_sends_bursts_of_a_flow(make_lab, sniff, way: str) -> None:
    lab = make_lab(udp_segmentation="off")
    sniffer = sniff(lab)
    words = ["--rate", "5k", "--burst", "20", "--flows", "2", "--flow-burst", "10", "--count", "1000"]
    report = gen(lab, *words, "--send", way)
    check_report(report, 1000)
    assert report["io"] == way
    found = sniffer.stop(1000)
    check_sequences(found, 2)
    # Twenty at a time are due at once.
    times = [one.probe[1] for one in found]
    assert len(set(times)) <= 50 + 50, "bursts share a time, but for clocks compared anew between"
    if way == "sendmsg":
        assert report["calls"] >= 1000
    if way == "gso":
        assert report["calls"] <= 500


def test_poisson_and_sizes_follow_the_seed(make_lab, sniff) -> None:
    lab = make_lab()

    def lengths(*words: str) -> list[int]:
        sniffer = sniff(lab)
        check_report(gen(lab, "--rate", "5k", "--count", "600", *words), 600)
        return [len(one.payload) for one in sniffer.stop(600)]

    first = lengths("--size", "24-1472", "--poisson", "--seed", "5")
    assert min(first) >= 24 and max(first) <= 1472 and len(set(first)) > 200
    assert lengths("--size", "24-1472", "--poisson", "--seed", "5") == first
    assert lengths("--size", "24-1472", "--seed", "6") != first
    assert set(lengths("--size", "imix")) == {24, 548, 1472}


def test_live_frames_come_from_any_address_and_go_to_many_ports(make_lab, sniff) -> None:
    lab = make_lab()
    sniffer = sniff(lab)
    words = ["--io", "live", "--source", "10.9.8.0/29", "--flows", "64", "--to-ports", "4", "--rate", "5k", "--count", "640"]
    check_report(gen(lab, *words), 640)
    found = sniffer.stop(640)
    check_sequences(found, 64)
    assert len({one.source for one in found}) == 64
    assert {one.source[0] for one in found} == {f"10.9.8.{host}" for host in range(8)}
    assert {one.destination[1] for one in found} == {PORT + number for number in range(4)}


def test_live_frames_need_no_route(make_lab, sniff) -> None:
    lab = make_lab()
    sniffer = sniff(lab)
    words = ["--io", "live", "--interface", links.CLIENT, "--to-mac", "02:00:00:00:00:77", "--source", "10.0.0.1"]
    check_report(gen(lab, *words, "--rate", "1k", "--count", "100", to=f"10.99.0.1:{PORT}"), 100)
    found = sniffer.stop(100)
    assert {one.to_mac for one in found} == {"02:00:00:00:00:77"}
    assert {one.destination[0] for one in found} == {"10.99.0.1"}


def test_live_frames_go_from_listed_addresses_to_listed_ones(make_lab, sniff, tmp_path: Path) -> None:
    lab = make_lab()
    sniffer = sniff(lab)
    sources, destinations = [f"10.7.{net}.9" for net in range(9)], [f"10.99.{net}.1" for net in range(4)]
    for name, addresses in (("from", sources), ("to", destinations)):
        (tmp_path / name).write_text("\n".join(addresses) + "\n")
    words = ["--io", "live", "--interface", links.CLIENT, "--to-mac", "02:00:00:00:00:77", "--source", "10.0.0.1"]
    words += ["--source-file", str(tmp_path / "from"), "--to-file", str(tmp_path / "to"), "--flows", "40"]
    check_report(gen(lab, *words, "--rate", "5k", "--count", "400"), 400)
    found = sniffer.stop(400)
    check_sequences(found, 40)
    assert {one.source[0] for one in found} == {"10.0.0.1", *sources}
    # Four take turns with ten.
    assert len({(one.source[0], one.destination[0]) for one in found}) == 20
    assert {one.destination for one in found} == {(address, PORT) for address in destinations}


@pytest.mark.parametrize("io", ["udp", "copy", "live"])
@pytest.mark.parametrize("group", ["239.1.2.3", "ff15::1:2"])
def test_multicast_leaves_by_its_interface_with_its_ttl(make_lab, sniff, io: str, group: str) -> None:
    lab = make_lab()
    mac = "01:00:5e:01:02:03" if "." in group else "33:33:00:01:00:02"
    for ttl in (None, "7"):
        sniffer = sniff(lab)
        words = ["--interface", links.CLIENT, "--rate", "1k", "--count", "100", "--io", io]
        report = gen(lab, *words, *(["--ttl", ttl] if ttl else []), to=address(group, PORT))
        check_report(report, 100)
        assert report["fallback"] == 0
        found = sniffer.stop(100)
        check_sequences(found, 1)
        assert {(one.to_mac, one.destination[0]) for one in found} == {(mac, group)}
        assert {one.ttl for one in found} == {int(ttl or 1)}


def test_a_capture_is_replayed_with_its_payloads_and_times(make_lab, sniff) -> None:
    lab = make_lab()
    first = sniff(lab)
    gen(lab, "--rate", "500", "--count", "200", "--poisson", "--size", "30-1400", "--payload", "random")
    captured = first.stop(200)

    second = sniff(lab)
    report = gen(lab, "--pcap", first.file, "--seconds", "60")
    check_report(report, 200)
    assert report["capture"] == {"replayed": 200, "other": 0, "broken": 0, "unfit": 0}
    assert [one.payload for one in second.stop(200)] == [one.payload for one in captured]

    for io in ("copy", "live"):
        third = sniff(lab)
        words = ["--pcap", first.file, "--seconds", "60", "--speed", "2", "--stamp", "--flows", "5", "--io", io]
        check_report(gen(lab, *words), 200)
        stamped = third.stop(200)
        check_sequences(stamped, 5)
        assert [one.payload[24:] for one in stamped] == [one.payload[24:] for one in captured]
        for one, original in zip(stamped, captured, strict=True):
            due = (one.probe[1] - stamped[0].probe[1]) / 1e9
            assert abs(due - (original.time - captured[0].time) / 2) < 1e-4


class Echo:
    """Sends datagrams back, of every `keep` all but one."""

    def __init__(self, lab: Lab, host: str, keep: int = 0) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.socket = run_inside(lab.server_namespace, lambda: socket.socket(family, socket.SOCK_DGRAM))
        self.socket.bind((host, PORT))
        self.keep = keep
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        count = 0
        while True:
            try:
                payload, source = self.socket.recvfrom(65536)
            except OSError:
                return
            count += 1
            if payload and not (self.keep and count % self.keep == 0):
                self.socket.sendto(payload, source)


@pytest.mark.parametrize("io", ["udp", "copy"])
def test_round_trips_are_measured_and_what_is_lost_is_counted(make_lab, io: str) -> None:
    lab = make_lab()
    Echo(lab, lab.server["ipv4"])
    Echo(lab, lab.server["ipv6"], keep=10)
    words = ["--round-trip", "--rate", "1k", "--count", "500", "--flows", "4", "--io", io]
    report = gen(lab, *words)
    check_report(report, 500)
    trip = report["round_trip"]
    assert (trip["received"], trip["lost"], trip["duplicates"], trip["foreign"]) == (500, 0, 0, 0), trip
    assert 0 < trip["round_trip_ns"]["p50"] <= trip["round_trip_ns"]["max"]
    trip = gen(lab, *words, "--linger", "500ms", to=address(lab.server["ipv6"], PORT))["round_trip"]
    assert (trip["received"], trip["lost"]) == (450, 50), trip


@pytest.mark.parametrize(("out", "into"), [("udp", "copy"), ("copy", "udp"), ("live", "copy")])
def test_the_receiver_reads_what_the_generator_writes(make_lab, tmp_path: Path, out: str, into: str) -> None:
    lab = make_lab()
    count = 2000
    # It counts each datagram, of one flow in order, and ends with the last.
    flags = ["--io", into, "--latency", "--sequence", "seq64", "--count", str(count)]
    with receivers(tmp_path) as start:
        recv = start(lab, *flags, listen=[address(lab.server["ipv4"], PORT)])
        recv.wait_ready()
        check_report(gen(lab, "--rate", "10k", "--count", str(count), "--io", out), count)
        report = recv.report()
    assert report["datagrams"] == count and sum(report["losses"].values()) == 0, report
    wire = report["latency"]["wire"]
    assert (wire["count"], wire["implausible"]) == (count, 0)
    assert (report["sequence"]["messages"], report["sequence"]["lost"]) == (count, 0), report["sequence"]


def test_a_schedule_that_cannot_be_kept_is_no_secret(make_lab) -> None:
    lab = make_lab()
    words = ["--rate", "100M", "--seconds", "0.2", "--late", "100us"]
    report = gen(lab, *words)
    assert report["offered"] == 20_000_000 and report["offered_pps"] == 1e8
    assert not report["kept"] and report["ended"] == "out_of_time"
    assert report["unsent"] > 0 and report["late"] > 0
    taken = report["lateness_ns"]["count"]
    assert taken + report["unsent"] == report["offered"]
    assert report["sent"] + report["refused"] + report["no_room"] == taken
    gen(lab, *words, "--strict", code=1)
    text = subprocess.run(command(lab, "--to", "198.18.0.1:7000", *words), capture_output=True, text=True, check=True)
    assert "schedule    NOT kept: " in text.stdout and "datagrams were due and not sent" in text.stdout


def test_a_full_queue_shows(make_lab) -> None:
    lab = make_lab()
    # What leaves by this queue is thrown away beyond 1 Mbit/s, and the kernel says ENOBUFS.
    lab.run("client", "tc", "qdisc", "replace", "dev", links.CLIENT, "root", "tbf", "rate", "1mbit", "burst", "2kb", "limit", "4kb")
    report = gen(lab, "--rate", "10k", "--seconds", "0.3", "--send", "sendmmsg", "--size", "1000")
    assert report["refused"] > 0 and not report["kept"], report
    assert report["sent"] + report["refused"] == report["offered"] == 3000


def test_a_full_socket_buffer_shows(make_lab) -> None:
    lab = make_lab()
    # The queue takes everything and lets next to nothing through: the socket's buffer stays charged (EAGAIN).
    lab.run("client", "tc", "qdisc", "replace", "dev", links.CLIENT, "root", "tbf", "rate", "8kbit", "burst", "2000", "limit", "100000000")
    report = gen(lab, "--rate", "20k", "--seconds", "0.5", "--size", "1400")
    assert report["full"] > 0 and report["unsent"] > 0 and report["no_room"] > 0, report
    taken = report["lateness_ns"]["count"]
    assert taken + report["unsent"] == report["offered"] == 10_000
    assert report["sent"] + report["refused"] + report["no_room"] == taken
    assert not report["kept"]


def test_fragments_only_when_told(make_lab) -> None:
    lab = make_lab()
    receiver = run_inside(lab.server_namespace, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    receiver.bind((lab.server["ipv4"], PORT))
    receiver.settimeout(LIMIT)
    error = refused(lab, "--rate", "1k", "--size", "1473", code=2)
    assert "MTU of client0 (1500)" in error and "1472 bytes" in error and "--fragment" in error
    check_report(gen(lab, "--rate", "100", "--count", "10", "--size", "4000", "--fragment"), 10)
    for number in range(10):
        payload = receiver.recv(65536)
        assert (len(payload), payload[:8]) == (4000, number.to_bytes(8, "big"))


REFUSALS = {
    "an unresolved neighbour": (["--rate", "1k"], "198.18.0.77:7000", 1, ("198.18.0.77", "no answer to neighbour discovery on client0")),
    "no route": (["--rate", "1k"], "203.0.113.1:7000", 1, ("203.0.113.1", "no route", "ip route get")),
    "port 0": (["--rate", "1k"], "198.18.0.1:0", 2, ("--to 198.18.0.1:0",)),
    "another family": (["--rate", "1k", "--source", "fd45:7870::2"], None, 2, ("fd45:7870::2", "address family")),
    "a foreign address": (["--rate", "1k", "--source", "198.18.0.99"], None, 1, ("198.18.0.99", "bind")),
    "too many flows": (["--rate", "1k", "--flows", "1025"], None, 2, ("--flows 1025", "1024", "--io live")),
    "a range of addresses": (["--rate", "1k", "--source", "10.0.0.0/24"], None, 2, ("256 addresses", "--io live")),
    "listed addresses and sockets": (["--rate", "1k", "--source-file", "/x"], None, 2, ("--source-file needs --io live",)),
    "no list": (["--rate", "1k", "--io", "live", "--source-file", "/nonexistent"], None, 2, ("--source-file /nonexistent", "No such file")),
    "destinations by a route": (["--rate", "1k", "--io", "live", "--to-file", "/x"], None, 2, ("--to-file needs --to-mac",)),
    "ports that end": (["--rate", "1k", "--flows", "9", "--source-port", "65530"], None, 2, ("source ports", "from 65530")),
    "round trips of live frames": (["--rate", "1k", "--io", "live", "--round-trip"], None, 2, ("--round-trip", "live")),
    "no interface": (["--rate", "1k", "--io", "live", "--interface", "eth9"], None, 1, ("interface eth9", "no such")),
    "another interface": (["--rate", "1k", "--io", "live", "--interface", "lo"], None, 1, ("--interface lo", "client0", "--to-mac")),
    "loopback": (["--rate", "1k", "--io", "live"], "198.18.0.2:7000", 1, ("--io live", "cannot be used by AF_XDP")),
    "live and large": (["--rate", "1k", "--io", "live", "--size", "1480"], None, 2, ("MTU of client0",)),
    "no capture": (["--pcap", str(BINARY)], None, 1, (str(BINARY), "not a pcap or pcapng file")),
    "no file": (["--pcap", "/nonexistent"], None, 1, ("/nonexistent", "No such file")),
    "a multicast echo": (["--rate", "1k", "--round-trip"], "239.1.1.1:7000", 2, ("--round-trip", "multicast")),
}


@pytest.mark.parametrize("case", list(REFUSALS))
def test_what_cannot_be_is_refused_in_a_line(make_lab, case: str) -> None:
    words, to, code, parts = REFUSALS[case]
    error = refused(make_lab(), *words, to=to, code=code)
    assert all(part in error for part in parts), error


def test_wrong_usage_is_told_by_the_command_line(make_lab) -> None:
    lab = make_lab()
    to = ("--to", address(lab.server["ipv4"], PORT))
    for words, part in (
        ([], "--rate <PPS>"),
        (["--rate", "0"], "more than 0"),
        (["--rate", "1k", "--size", "23"], "need 24"),
        (["--rate", "1k", "--seconds", "0"], "more than 0"),
        (["--rate", "1k", "--pcap", "x"], "cannot be used with"),
        (["--rate", "1k", "--io", "fast"], "live"),
        (["--rate", "1k", "--speed", "2"], "--pcap"),
    ):
        result = subprocess.run(command(lab, *to, *words), capture_output=True, text=True, check=False)
        assert result.returncode == 2 and part in result.stderr, f"{words}: {result.stderr}"


def test_a_peer_that_takes_no_live_frames_is_named_as_the_reason(make_lab) -> None:
    lab = make_lab()
    lab.run("server", "ethtool", "-K", links.SERVER, "gro", "off")
    error = refused(lab, "--rate", "1k", "--io", "live")
    assert "client0" in error and "does not accept frames from XDP" in error and "gro on" in error


@pytest.mark.parametrize("io", ["copy", "live"])
def test_without_privilege_it_says_what_it_takes(make_lab, io: str) -> None:
    error = refused(make_lab(), "--rate", "1k", "--io", io, prefix=UNPRIVILEGED)
    assert "CAP_" in error or "ermitted" in error, error


def test_kernel_sockets_need_no_privilege(make_lab) -> None:
    check_report(gen(make_lab(), "--rate", "1k", "--count", "100", prefix=UNPRIVILEGED), 100)


AGENT_RULE = """name = "gen"
users = [65534]
listen = ["0.0.0.0:50000"]
interfaces = ["server0"]
memory = "64MiB"
"""


def test_an_agent_gives_af_xdp_without_privilege(make_lab, start_agent, tmp_path: Path) -> None:
    lab = make_lab()
    open_to_all(tmp_path)
    agent = start_agent(lab, AGENT_RULE)
    words = ["--rate", "1k", "--count", "100", "--io", "copy", "--agent", agent.socket]
    to = address(lab.client["ipv4"], PORT)
    report = gen(lab, *words, to=to, role="server", prefix=UNPRIVILEGED)
    check_report(report, 100)
    assert report["io"] == "copy"
    error = refused(lab, *words, "--source-port", "50001", to=to, role="server", prefix=UNPRIVILEGED)
    assert "rule `gen`" in error


def test_an_agent_that_is_killed_and_comes_back(make_lab, start_agent, tmp_path: Path) -> None:
    lab = make_lab()
    open_to_all(tmp_path)
    agent = start_agent(lab, AGENT_RULE)
    words = ["--to", address(lab.client["ipv4"], PORT), "--rate", "500", "--seconds", "10000", "--json"]
    words += ["--io", "copy", "--agent", str(agent.socket)]
    line = lab.inside("server", *UNPRIVILEGED, BINARY, "--log-level", "info", "gen", "udp", *words)
    process = Daemon()
    process.log_file = tmp_path / "gen.log"
    try:
        with process.log_file.open("wb") as log:
            process.process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=log, text=True)
        process.wait_log("AF_XDP socket obtained")
        agent.kill()
        process.wait_log("agent connection lost")
        agent.start()
        # What has begun is reopened; if the agent died while it began, it begins anew.
        process.wait_log("AF_XDP path reopened", instead="AF_XDP path opened again")
        # It goes on to send.
        with udp_socket(lab.client_namespace, socket.AF_INET) as receiver:
            receiver.settimeout(LIMIT)
            receiver.bind((lab.client["ipv4"], PORT))
            receiver.recv(65536)
        process.process.send_signal(signal.SIGINT)
        report = json.loads(process.process.communicate(timeout=LIMIT)[0])
        assert (report["ended"], report["unsent"], report["refused"]) == ("stopped", 0, 0), report
        assert report["sent"] == report["offered"] > 0
    finally:
        if process.process.poll() is None:
            process.kill()


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_a_report(make_lab, sniff, stop: signal.Signals) -> None:
    lab = make_lab()
    sniffer = sniff(lab)
    line = command(lab, "--to", address(lab.server["ipv4"], PORT), "--rate", "1k", "--seconds", "10000", "--json", "--io", "copy")
    process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + LIMIT
    while not sniffer.file.exists() or sniffer.file.stat().st_size < 2000:
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.02)
    process.send_signal(stop)
    output, _ = process.communicate(timeout=LIMIT)
    report = json.loads(output)
    assert process.returncode == 0 and report["ended"] == "stopped"
    assert report["sent"] == report["offered"] > 0 and report["unsent"] == 0
    assert "prog/xdp" not in links.ip(lab, "client", f"-details link show dev {links.CLIENT}")
    assert len(sniffer.stop(report["sent"])) == report["sent"]


@pytest.mark.parametrize("io", ["udp", "live"])
def test_an_interface_that_goes_is_told(make_lab, sniff, io: str) -> None:
    lab = make_lab()
    sniffer = sniff(lab)
    line = command(lab, "--to", address(lab.server["ipv4"], PORT), "--rate", "1k", "--seconds", "5", "--json", "--io", io)
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + LIMIT
    while not sniffer.file.exists() or sniffer.file.stat().st_size < 2000:
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.02)
    links.remove(lab)
    output, errors = process.communicate(timeout=LIMIT)
    if io == "live":
        assert process.returncode == 1 and "client0" in errors or "interface index" in errors, errors
        assert "no such interface" in errors or "no longer accepts frames from XDP" in errors, errors
    else:
        report = json.loads(output)
        assert report["refused"] > 0 and not report["kept"], report


def test_it_does_not_grow_with_the_run(make_lab) -> None:
    lab = make_lab()
    line = command(lab, "--to", address(lab.server["ipv4"], PORT), "--rate", "100k", "--seconds", "1000", "--io", "live")
    process = subprocess.Popen(line, stdout=subprocess.DEVNULL)

    def resident() -> int:
        # Of the generator: `lab exec` becomes it.
        return int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")

    time.sleep(1.5)
    early = resident()
    time.sleep(2)
    late = resident()
    process.send_signal(signal.SIGINT)
    assert process.wait(LIMIT) == 0
    assert late - early < 2 << 20, f"{early} {late}"
