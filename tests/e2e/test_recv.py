"""`expressway recv` over a veth, with peers on ordinary sockets, raw frames, and the kernel's own counters."""

import contextlib
import json
import os
import pty
import signal
import socket
import struct
import subprocess
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import links
from harness.agent import CONTAINED, NOBODY, UNPRIVILEGED, Agent
from harness.lab import Lab
from harness.namespace import run_inside
from harness.paths import BINARY, LIMIT, open_to_all
from harness.recv import PORT, Peer, Recv, probe, receivers
from harness.server import address
from harness.threads import threads

GROUPS = ("239.7.7.7", "ff15::7", "ff02::7777")


@pytest.fixture
def make_recv(make_lab, start_agent, tmp_path: Path) -> Iterator[Callable[..., Recv]]:
    """Starts receivers; at the end each has to be alive, unless the test has ended it, and to stop cleanly."""
    with receivers(tmp_path) as start:

        def make(lab: Lab, *flags: str, ready: bool = True, **options) -> Recv:
            recv = start(lab, *flags, **options)
            if ready:
                recv.wait_ready()
            return recv

        yield make


def lost(report: dict) -> int:
    """Datagrams that are known to be lost."""
    return sum(report["losses"].values())


@pytest.mark.parametrize("family", ["ipv4", "ipv6"])
@pytest.mark.parametrize("mode", ["auto", "copy", "generic", "udp"])
def test_every_datagram_is_counted_in_every_mode(make_lab, make_recv, mode: str, family: str) -> None:
    lab = make_lab()
    host = lab.server[family]
    recv = make_recv(lab, "--io", mode, "--latency", listen=[address(host, PORT)])
    ready = recv.wait_ready()
    assert ready["io"] == {"auto": "copy"}.get(mode, mode)
    Peer(lab, host).send(500, size=200)
    time.sleep(0.2)
    report = recv.stop()
    assert (report["datagrams"], report["bytes"], lost(report)) == (500, 100_000, 0), report
    assert report["io"] == ready["io"]
    by, who = ("kernel", "kernel") if mode == "udp" else ("af_xdp", "xdp")
    assert report["by"] == {"af_xdp": 0, "kernel": 0} | {by: 500}
    assert report["stamped"][who] == 500, report["stamped"]
    assert ready["stamps"] == who
    latency = report["latency"]
    assert latency["wire"]["count"] == 500 and latency["wire"]["implausible"] == 0
    (stamp,) = latency["callback"]
    callback = latency["callback"][stamp]
    assert stamp == who and (callback["count"], callback["implausible"]) == (500, 0)
    percentiles = list(callback["percentiles"].values())
    assert callback["min"] > 0 and percentiles == sorted(percentiles)
    assert sum(count for _, count in callback["histogram"]) == 500
    if mode == "auto":
        assert any("zero-copy" in step["from"] for step in report["step_downs"]), report["step_downs"]


@pytest.mark.parametrize("mode", ["copy", "udp"])
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("specific", [False, True], ids=["any-source", "source-specific"])
def test_a_multicast_group(make_lab, make_recv, group: str, specific: bool, mode: str) -> None:
    lab = make_lab()
    family = "ipv6" if ":" in group else "ipv4"
    wanted, other = lab.client[family], "fd45:7870::99" if family == "ipv6" else "198.18.0.99"
    length = 64 if family == "ipv6" else 24
    flags = ["nodad"] if family == "ipv6" else []
    lab.run("client", "ip", "address", "add", f"{other}/{length}", "dev", "client0", *flags)
    flags = ["--source", wanted] if specific else []
    recv = make_recv(lab, "--io", mode, "--interface", "server0", *flags, listen=[address(group, PORT)])
    joined = lab.run("server", "ip", "maddress", "show", "dev", "server0")
    assert group in joined, joined
    filters = lab.run("server", "cat", f"/proc/net/mcfilter{'6' if family == 'ipv6' else ''}")
    assert bool(filters.count("\n") > 1) == specific, filters
    Peer(lab, group, interface="client0", source=other).send(50)
    Peer(lab, group, interface="client0", source=wanted).send(100)
    # Another port of the group is not asked for.
    Peer(lab, group, port=PORT + 1, interface="client0", source=wanted).send(10)
    time.sleep(0.2)
    report = recv.stop()
    assert report["datagrams"] == (100 if specific else 150), report
    assert report["by"]["af_xdp" if mode == "copy" else "kernel"] >= report["datagrams"]
    # The kernel filters for its sockets; what comes past it is filtered here, and counted.
    assert report["losses"]["other_source"] == (50 if specific and mode == "copy" else 0), report["losses"]


def test_latency_counts_from_when_a_datagram_was_due(make_lab, make_recv, tmp_path: Path) -> None:
    lab = make_lab()
    plot = tmp_path / "latency.svg"
    recv = make_recv(lab, "--io", "copy", "--latency", "--plot", str(plot), "--count", "200")
    peer = Peer(lab, lab.server["ipv4"])
    peer.send(150, late=0.25)
    # What is no probe, what was recorded long ago, and what is due in the future.
    peer.socket.send(b"no probe")
    peer.socket.send(probe(0, late=3600))
    peer.socket.send(probe(0, late=-3600))
    peer.send(47)
    report = recv.report()
    wire = report["latency"]["wire"]
    assert (wire["count"], wire["implausible"]) == (197, 2)
    assert 0.25e9 < wire["percentiles"]["p50"] < 1e10 and wire["min"] < 0.25e9
    assert report["latency"]["callback"]["xdp"]["count"] == 200
    lines = ElementTree.parse(plot).getroot().findall("{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == 2


def test_the_report_as_text(make_lab) -> None:
    lab = make_lab()
    host = lab.server["ipv4"]
    command = lab.inside("server", BINARY, "recv", "--listen", address(host, PORT), "--io", "udp", "--latency", "--count", "20")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout and process.stdout.readline() == f"ready listen={host}:{PORT} io=udp stamps=kernel\n"
    Peer(lab, host).send(20)
    output, errors = process.communicate(timeout=LIMIT)
    assert process.returncode == 0
    for part in ("received 20 datagrams", "by the kernel 20", "lost: none", "kernel stamp to callback", "p99.9", "#"):
        assert part in output, output
    assert "/s, " not in errors, "progress is for terminals"


def test_progress_is_shown_on_a_terminal(make_lab) -> None:
    lab = make_lab()
    host = lab.server["ipv4"]
    ours, theirs = pty.openpty()
    command = lab.inside("server", BINARY, "recv", "--listen", address(host, PORT), "--io", "udp", "--seconds", "2.5")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, text=True)
    os.close(theirs)
    assert process.stdout and process.stdout.readline().startswith("ready ")
    Peer(lab, host).send(20)
    shown = b""
    # A terminal whose other end is closed answers EIO.
    with contextlib.suppress(OSError):
        while data := os.read(ours, 4096):
            shown += data
    os.close(ours)
    assert process.wait(LIMIT) == 0
    assert b"20 datagrams, " in shown and b" Mbit/s" in shown, shown
    assert "/s, " not in process.stdout.read().split("by AF_XDP")[1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_and_a_time_end_it_with_its_report(make_lab, make_recv, number: signal.Signals) -> None:
    lab = make_lab()
    recv = make_recv(lab, "--io", "copy")
    timed = make_recv(lab, "--io", "udp", "--seconds", "0.2", listen=[address(lab.server["ipv4"], PORT + 1)])
    assert timed.wait() == 0
    assert json.loads(timed.output)["elapsed_seconds"] >= 0.2
    Peer(lab, lab.server["ipv4"]).send(3)
    time.sleep(0.1)
    assert recv.stop(number)["datagrams"] == 3


def test_several_addresses(make_lab, make_recv) -> None:
    lab = make_lab()
    listen = [address(lab.server[family], port) for family, port in (("ipv4", 5000), ("ipv4", 5001), ("ipv6", 5000))]
    recv = make_recv(lab, "--io", "copy", "--interface", "server0", listen=[*listen, "239.7.7.7:5000"])
    for family, port in (("ipv4", 5000), ("ipv4", 5001), ("ipv6", 5000)):
        Peer(lab, lab.server[family], port).send(10)
    Peer(lab, "239.7.7.7", interface="client0").send(10)
    time.sleep(0.2)
    assert recv.stop()["by"] == {"af_xdp": 40, "kernel": 0}


@pytest.mark.parametrize("mode", ["copy", "hybrid", "udp"])
def test_echo(make_lab, make_recv, mode: str) -> None:
    lab = make_lab()
    recv = make_recv(lab, "--io", mode, "--echo", "--count", "60")
    peer = Peer(lab, lab.server["ipv4"])
    for number in range(60):
        data = bytes([number]) * (1 + 23 * number)
        peer.socket.send(data)
        assert peer.socket.recv(2048) == data
    assert recv.report()["echo"] == {"sent": 60, "dropped": 0}


def test_waiting_pinning_and_memory(make_lab, make_recv) -> None:
    lab = make_lab()
    recv = make_recv(lab, "--io", "copy", "--wait", "spin", "--cpu", "1", "--lock-memory", "--ring", "256")
    process = Path(f"/proc/{recv.process.pid}")
    locked = [line for line in (process / "status").read_text().splitlines() if line.startswith("VmLck")]
    assert int(locked[0].split()[1]) > 1024, locked
    deadline = time.monotonic() + LIMIT
    cpus: list[str] = []
    # It is ready before the thread has its name and its core.
    while not any("Cpus_allowed_list:\t1\n" in status for status in cpus) and time.monotonic() < deadline:
        time.sleep(0.01)
        cpus = [(task / "status").read_text() for task in threads(recv.process.pid, "expressway-recv")]
    assert len(cpus) == 1 and "Cpus_allowed_list:\t1\n" in cpus[0]
    Peer(lab, lab.server["ipv4"]).send(100)
    time.sleep(0.2)
    report = recv.stop()
    assert report["datagrams"] == 100 and report["wait"] == "spin"
    assert report["turns"]["sleeps"] == 0 and report["memory"][0]["pages"] in ("transparent", "hugetlb", "normal")


@pytest.mark.parametrize(("mode", "reason"), [("copy", ("xdp_rx_dropped", "xdp_rx_ring_full")), ("udp", ("kernel_socket",))])
def test_what_a_stopped_receiver_loses_is_counted_by_reason(
    make_lab, make_recv, mode: str, reason: tuple[str, ...]
) -> None:
    lab = make_lab()
    recv = make_recv(lab, "--io", mode, "--ring", "64", "--receive-buffer", "8KiB")
    recv.send_signal(signal.SIGSTOP)
    Peer(lab, lab.server["ipv4"]).send(1000)
    time.sleep(0.2)
    recv.send_signal(signal.SIGCONT)
    time.sleep(0.2)
    report = recv.stop()
    assert 0 < report["datagrams"] < 1000
    (link,) = json.loads(lab.run("client", "ip", "-json", "-statistics", "link", "show", links.CLIENT))
    # On a busy machine the backlog behind the link may be full, before the receiver has any part in it.
    arrived = 1000 - link["stats64"]["tx"]["dropped"]
    assert sum(report["losses"][one] for one in reason) == lost(report) == arrived - report["datagrams"], report


def frame(lab: Lab, source: str = "", length: int | None = None, cut: int = 0) -> bytes:
    """An Ethernet frame with a UDP datagram to the receiver, wrong as asked."""
    macs = [lab.run(role, "cat", f"/sys/class/net/{role}0/address").strip() for role in ("server", "client")]
    payload = b"sixteen bytes..."
    udp = struct.pack("!HHHH", 9, PORT, length or 8 + len(payload), 0) + payload
    addresses = socket.inet_aton(source or lab.client["ipv4"]) + socket.inet_aton(lab.server["ipv4"])
    header = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(udp), 0, 0, 64, 17, 0) + addresses
    total = sum(struct.unpack("!10H", header))
    checksum = ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF
    header = header[:10] + struct.pack("!H", checksum) + header[12:]
    ether = b"".join(bytes.fromhex(mac.replace(":", "")) for mac in macs) + b"\x08\x00"
    whole = ether + header + udp
    return whole[: len(whole) - cut]


def test_malformed_datagrams_are_dropped_by_reason(make_lab, make_recv) -> None:
    lab = make_lab()
    recv = make_recv(lab, "--io", "copy")
    raw = run_inside(lab.client_namespace, lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
    run_inside(lab.client_namespace, lambda: raw.bind(("client0", 0)))
    for one in (
        frame(lab),
        frame(lab, length=7),
        frame(lab, length=100),
        frame(lab, cut=5),
        frame(lab, cut=18),
        frame(lab, source="127.0.0.1"),
        frame(lab, source="224.0.0.1"),
        frame(lab, source=lab.server["ipv4"]),
        frame(lab),
    ):
        raw.send(one)
    time.sleep(0.2)
    report = recv.stop()
    assert report["datagrams"] == 2 and report["bytes"] == 32, report
    losses = {reason: count for reason, count in report["losses"].items() if count}
    assert losses == {"malformed": 3, "xdp_program_udp_length": 2, "xdp_program_ip_length": 1, "xdp_program_udp_header": 1}


def test_without_privilege_auto_steps_down_and_other_modes_are_errors(make_lab, make_recv) -> None:
    lab = make_lab()
    recv = make_recv(lab, "--latency", prefix=UNPRIVILEGED)
    assert recv.wait_ready() == {"listen": recv.listen[0], "io": "udp", "stamps": "kernel"}
    Peer(lab, lab.server["ipv4"]).send(10)
    time.sleep(0.2)
    report = recv.stop()
    assert report["datagrams"] == report["stamped"]["kernel"] == 10
    (step,) = report["step_downs"]
    assert step["to"] == "kernel" and "CAP_" in step["reason"], step
    explicit = make_recv(lab, "--io", "copy", prefix=UNPRIVILEGED, ready=False)
    assert explicit.wait() == 1
    assert "--io copy" in explicit.log() and "CAP_" in explicit.log() and explicit.output == ""
    for flags, complaint in ((["--wait", "busy-poll"], "CAP_NET_ADMIN"), (["--lock-memory"], "CAP_IPC_LOCK")):
        limited = ("prlimit", "--memlock=65536", *UNPRIVILEGED)
        refused = make_recv(lab, "--io", "udp", *flags, prefix=limited, ready=False)
        assert refused.wait() == 1 and complaint in refused.log(), refused.log()


def test_a_port_in_use_an_absent_interface_and_an_absent_cpu_are_named(make_lab, make_recv) -> None:
    lab = make_lab()
    make_recv(lab, "--io", "udp")
    for flags, listen, complaint in (
        ([], address(lab.server["ipv4"], PORT), "in use"),
        (["--interface", "absent0"], "239.7.7.7:5000", "239.7.7.7"),
        (["--interface", "absent0", "--io", "udp"], "239.7.7.7:5000", "absent0"),
        (["--cpu", "4000"], address(lab.server["ipv4"], PORT + 1), "4000"),
        ([], address("192.0.2.77", PORT), "192.0.2.77"),
    ):
        refused = make_recv(lab, *flags, listen=[listen], ready=False)
        assert refused.wait() == 1, flags
        last = refused.log().splitlines()[-1]
        assert last.startswith("expressway: ") and complaint in last, refused.log()


def test_an_interface_that_goes_and_returns(make_lab, make_recv) -> None:
    lab = make_lab()
    lab.add_extra_link()
    listen = ["198.51.100.1:5000", "239.7.7.7:5000"]
    recv = make_recv(lab, "--io", "copy", "--interface", "extra0", listen=listen)

    def feed() -> None:
        Peer(lab, "198.51.100.1").send(10)
        Peer(lab, "239.7.7.7", interface="extra1").send(10)

    feed()
    lab.run("server", "ip", "link", "delete", "extra0")
    recv.wait_log("multicast group lost")
    lab.add_extra_link()
    recv.wait_log("multicast group rejoined")
    recv.wait_log("AF_XDP path reopened")
    lab.run("client", "ping", "-c", "1", "-w", "20", "198.51.100.1")
    feed()
    time.sleep(0.2)
    report = recv.stop()
    assert report["datagrams"] == 40 and report["by"]["af_xdp"] == 40, report


def test_one_that_is_killed_leaves_nothing_in_the_way_of_the_next(make_lab, make_recv) -> None:
    lab = make_lab()
    recv = make_recv(lab, "--io", "copy", "--interface", "server0", listen=["239.7.7.7:5000"])
    for _ in range(3):
        recv.process.kill()
        recv.wait()
        assert "239.7.7.7" not in lab.run("server", "ip", "maddress", "show", "dev", "server0")
        recv.start()
        recv.wait_ready()
    Peer(lab, "239.7.7.7", interface="client0").send(10)
    time.sleep(0.2)
    assert recv.stop()["datagrams"] == 10


RULE = f"""name = "feeds"
users = [{NOBODY}]
listen = ["0.0.0.0:{PORT}", "239.7.7.7:{PORT}"]
interfaces = ["server0"]
"""


@pytest.fixture
def open_agent(start_agent, tmp_path: Path) -> Callable[[Lab], Agent]:
    """Starts an agent whose socket everyone can reach."""
    open_to_all(tmp_path)
    return lambda lab: start_agent(lab, RULE)


@pytest.mark.parametrize("mode", ["copy", "udp"])
@pytest.mark.parametrize("prefix", [UNPRIVILEGED, CONTAINED], ids=["user", "user-and-network-namespace"])
def test_without_any_capability_by_an_agent(make_lab, open_agent, make_recv, mode: str, prefix) -> None:
    lab = make_lab()
    agent = open_agent(lab)
    flags = ["--agent", str(agent.socket), "--io", mode, "--latency"]
    unicast = address(lab.server["ipv4"], PORT)
    recv = make_recv(lab, *flags, listen=[unicast], prefix=prefix)
    Peer(lab, lab.server["ipv4"]).send(100)
    time.sleep(0.2)
    recv.send_signal(signal.SIGTERM)
    assert recv.wait() == 0, recv.log()
    report = json.loads(recv.output)
    way, who = ("af_xdp", "xdp") if mode == "copy" else ("kernel", "kernel")
    assert report["by"][way] == report["stamped"][who] == report["datagrams"] == 100, report
    refused = make_recv(lab, *flags, listen=["0.0.0.0:5001"], prefix=prefix, ready=False)
    assert refused.wait() == 1 and "rule `feeds`" in refused.log()
    agent.stop()


def test_an_agent_that_is_killed_and_comes_back(make_lab, open_agent, make_recv) -> None:
    lab = make_lab()
    agent = open_agent(lab)
    recv = make_recv(lab, "--agent", str(agent.socket), "--io", "copy", prefix=UNPRIVILEGED)
    peer = Peer(lab, lab.server["ipv4"])
    peer.send(100)
    agent.kill()
    recv.wait_log("agent connection lost")
    peer.send(100)
    agent.start()
    recv.wait_log("AF_XDP path reopened")
    peer.send(100)
    time.sleep(0.2)
    recv.send_signal(signal.SIGTERM)
    assert recv.wait() == 0, recv.log()
    # The pair of the new program comes after the program: what is sent in between is the kernel's.
    report = json.loads(recv.output)
    assert report["datagrams"] == 300 and report["by"]["af_xdp"] > 200, report
    agent.stop()


def test_a_group_by_an_agent_has_to_be_named_by_its_rule(make_lab, open_agent, make_recv) -> None:
    lab = make_lab()
    agent = open_agent(lab)
    flags = ["--agent", str(agent.socket), "--io", "copy", "--interface", "server0"]
    recv = make_recv(lab, *flags, listen=["239.7.7.7:5000"], prefix=UNPRIVILEGED)
    Peer(lab, "239.7.7.7", interface="client0").send(100)
    time.sleep(0.2)
    recv.send_signal(signal.SIGTERM)
    assert recv.wait() == 0, recv.log()
    assert json.loads(recv.output)["by"] == {"af_xdp": 100, "kernel": 0}
    refused = make_recv(lab, *flags, listen=["239.7.7.8:5000"], prefix=UNPRIVILEGED, ready=False)
    assert refused.wait() == 1 and "239.7.7.8:5000 is not in listen" in refused.log()
    agent.stop()


WRONG = [
    (["--listen", "127.0.0.1:0"], "port 0"),
    (["--listen", "127.0.0.1"], "127.0.0.1"),
    ([], "--listen"),
    (["--listen", "127.0.0.1:5000", "--io", "hybrid"], "needs --echo"),
    (["--listen", "239.7.7.7:5000", "--echo"], "multicast group"),
    (["--listen", "127.0.0.1:5000", "--interface", "lo"], "no --listen address is a multicast group"),
    (["--listen", "127.0.0.1:5000", "--source", "::1"], "address family"),
    (["--listen", "127.0.0.1:5000", "--ring", "100"], "power of two"),
    (["--listen", "127.0.0.1:5000", "--wait", "sleep"], "not one of interrupt, busy-poll, spin"),
    (["--listen", "127.0.0.1:5000", "--plot", "x.svg"], "--latency"),
    (["--listen", "127.0.0.1:5000", "--count", "0"], "--count"),
    (["--listen", "127.0.0.1:5000", "--seconds", "-1"], "--seconds"),
    (["--listen", "127.0.0.1:5000", "--nic-clock", "utc"], "tai nor realtime"),
]


@pytest.mark.parametrize(("flags", "complaint"), WRONG, ids=[" ".join(flags) for flags, _ in WRONG])
def test_wrong_usage_is_told(flags: list[str], complaint: str) -> None:
    result = subprocess.run([BINARY, "recv", *flags], capture_output=True, text=True, check=False, timeout=LIMIT)
    assert result.returncode == 2, result
    assert complaint in result.stderr and result.stdout == "", result.stderr
