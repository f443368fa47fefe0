"""`expressway drop` on a veth, under live frames and under ordinary senders."""

import json
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import foreign, links
from harness.daemon import Daemon, finish_all
from harness.fanout import Sender
from harness.lab import Lab
from harness.namespace import run_inside
from harness.paths import BINARY, LIMIT
from harness.server import address
from harness.sniffer import Sniffer

PORT = 7000


class Drop(Daemon):
    """A running `expressway drop`."""

    def __init__(self, lab: Lab, folder: Path, *words: str) -> None:
        command = lab.inside("server", BINARY, "drop", "-i", links.SERVER, *words)
        self.lab = lab
        folder.mkdir()
        self.log_file = folder / "drop.log"
        with self.log_file.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout
        self.ready = "" if "--json" in words else self.process.stdout.readline()

    def end(self, by: signal.Signals | None = signal.SIGINT) -> str:
        """Ends it well, and returns what else it printed."""
        if by:
            self.process.send_signal(by)
        output, _ = self.process.communicate(timeout=LIMIT)
        assert self.wait() == 0, self.log()
        assert not attached(self.lab)
        return output

    def left(self) -> list[str]:
        """Its program."""
        return self.lab.programs("server")


def attached(lab: Lab) -> bool:
    """Whether the server's interface shows an XDP program."""
    return "prog/xdp" in links.ip(lab, "server", f"-details link show dev {links.SERVER}")


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Waits for something to be so."""
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def flood(lab: Lab, count: int, to: str | None = None) -> int:
    """Sends live frames to the server and returns how many its interface took."""
    words = ["--to", to or address(lab.server["ipv4"], PORT), "--rate", "20k", "--count", str(count), "--io", "live", "--json"]
    report = json.loads(lab.run("client", BINARY, "--log-level", "error", "gen", "udp", *words))
    return report["sent"]


@pytest.fixture
def make_drop(make_lab, tmp_path: Path) -> Iterator[Callable[..., Drop]]:
    """Starts it; at the end each has to be alive, unless the test has ended it, and to stop cleanly."""
    running: list[Drop] = []

    def make(lab: Lab, *words: str) -> Drop:
        running.append(Drop(lab, tmp_path / f"drop-{len(running)}", *words))
        return running[-1]

    yield make
    finish_all(running)


@pytest.mark.parametrize("generic", [False, True])
@pytest.mark.parametrize("action", ["drop", "pass", "count", "touch"])
def test_each_action_does_what_it_says_and_counts(make_lab, make_drop, action: str, generic: bool) -> None:
    lab = make_lab()
    receiver = run_inside(lab.server_namespace, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
    receiver.bind((lab.server["ipv4"], PORT))
    receiver.setblocking(False)
    # The neighbour is known before nobody answers any more.
    lab.run("client", "ping", "-c1", lab.server["ipv4"])
    mode = ["--generic"] if generic else []
    drop = make_drop(lab, "--action", action, *mode)
    assert drop.ready == f"ready interface=server0 action={action} mode={'generic' if generic else 'native'}\n"
    if generic:
        sender = Sender(lab, lab.server["ipv4"], PORT)
        sender.send(500)
        sent = 500
    else:
        sent = flood(lab, 500)
        assert sent == 500
    arrived = 0
    if action in ("pass", "count"):
        wait_until(lambda: bool(receiver.recv(65536)) if readable(receiver) else False, "the first datagram")
        arrived = 1
        deadline = time.monotonic() + LIMIT
        while arrived < sent and time.monotonic() < deadline:
            if readable(receiver):
                receiver.recv(65536)
                arrived += 1
        assert arrived == sent
    else:
        assert not readable(receiver)
    summary = drop.end()
    assert "mean" in summary
    total = int(summary.rsplit("total", 1)[1].split()[0])
    # The client's kernel may have said something of its own.
    assert sent <= total <= sent + 50, summary
    assert ("core" in summary) == (action != "pass")
    assert arrived or not readable(receiver)


def readable(receiver: socket.socket) -> bool:
    """Whether a datagram waits."""
    try:
        return bool(receiver.recv(65536, socket.MSG_PEEK))
    except BlockingIOError:
        return False


def test_tx_returns_frames_with_swapped_addresses(make_lab, make_drop, tmp_path: Path) -> None:
    lab = make_lab()
    lab.run("client", "ping", "-c1", lab.server["ipv4"])
    # What a veth sends back by XDP_TX is looked at only where the other end has a program too (`veth_xdp_flush`).
    passing = subprocess.Popen(
        lab.inside("client", BINARY, "drop", "-i", links.CLIENT, "--action", "pass"), stdout=subprocess.PIPE, text=True
    )
    assert passing.stdout and passing.stdout.readline().startswith("ready")
    drop = make_drop(lab, "--action", "tx", "--json")
    wait_until(lambda: attached(lab), "the program on")
    mac = lab.run("client", "cat", f"/sys/class/net/{links.CLIENT}/address").strip()
    expression = f"udp and dst port {PORT} and ether dst {mac}"
    sniffer = Sniffer(lab, "client", links.CLIENT, tmp_path / "back.pcap", expression)
    assert flood(lab, 200) == 200
    found = sniffer.stop(200)
    passing.send_signal(signal.SIGINT)
    assert passing.wait(LIMIT) == 0
    assert {one.to_mac for one in found} == {mac}
    assert [one.probe[0] for one in found] == list(range(200))
    report = json.loads(drop.end(signal.SIGTERM))
    assert report["packets"] >= 200 and report["sent"] >= 200, report


def test_redirect_sends_out_of_another_interface(make_lab, make_drop, tmp_path: Path) -> None:
    lab = make_lab()
    links.ip(lab, "server", "link add out type veth peer name end")
    for name in ("out", "end"):
        links.ip(lab, "server", f"link set {name} up")
        lab.run("server", "ethtool", "-K", name, "gro", "on")
    lab.run("client", "ping", "-c1", lab.server["ipv4"])
    drop = make_drop(lab, "--action", "redirect", "--to", "out", "--json")
    wait_until(lambda: attached(lab), "the program on")
    sniffer = Sniffer(lab, "server", "end", tmp_path / "end.pcap", f"udp and dst port {PORT}")
    assert flood(lab, 200) == 200
    assert [one.probe[0] for one in sniffer.stop(200)] == list(range(200))
    report = json.loads(drop.end())
    assert (report["interface"], report["action"], report["to"], report["mode"]) == ("server0", "redirect", "out", "native")
    assert report["sent"] >= 200 and report["refused"] == 0
    assert report["packets"] == sum(core["packets"] for core in report["cores"]) >= 200
    # Where the other interface takes nothing, that is counted.
    links.ip(lab, "server", "link set out down")
    drop = make_drop(lab, "--action", "redirect", "--to", "out", "--json")
    wait_until(lambda: attached(lab), "the program on")
    flood(lab, 50)
    report = json.loads(drop.end())
    assert report["packets"] >= 50 and report["sent"] == 0


def test_it_ends_by_itself_and_prints_a_line_a_second(make_lab, make_drop) -> None:
    lab = make_lab()
    drop = make_drop(lab, "--seconds", "3")
    lines = drop.end(None).splitlines()
    assert [line.split()[:2] for line in lines[:2]] == [["1", "s"], ["2", "s"]], lines
    assert lines[-2].startswith("mean") and lines[-1].startswith("total"), lines


def test_a_kill_leaves_nothing(make_lab, make_drop) -> None:
    lab = make_lab()
    drop = make_drop(lab)
    assert attached(lab)
    drop.kill()
    wait_until(lambda: not attached(lab), "the program off")
    make_drop(lab).end()


def failure(lab: Lab, *words: str, code: int = 1) -> str:
    """The one line that it fails with."""
    line = lab.inside("server", BINARY, "drop", *words)
    result = subprocess.run(line, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert (result.returncode, result.stdout) == (code, ""), result
    (error,) = result.stderr.splitlines()
    return error


def test_a_foreign_program_is_named_and_taken_off_only_when_told(make_lab, make_drop, foreign_object: Path) -> None:
    lab = make_lab()
    foreign.attach(lab, foreign_object)
    error = failure(lab, "-i", links.SERVER)
    assert "server0" in error and "foreign_pass" in error and "--replace" in error, error
    make_drop(lab, "--replace").end()
    # What a link holds nobody can replace.
    first = make_drop(lab)
    error = failure(lab, "-i", links.SERVER, "--replace")
    assert "baseline_drop" in error and "bpf_link" in error, error
    first.end()


def test_what_cannot_be_is_refused_in_a_line(make_lab) -> None:
    lab = make_lab()
    assert "interface eth9: no such interface" in failure(lab, "-i", "eth9")
    assert "interface eth9: no such interface" in failure(lab, "-i", links.SERVER, "--action", "redirect", "--to", "eth9")
    assert "--to: action drop does not redirect" in failure(lab, "-i", links.SERVER, "--to", links.SERVER, code=2)
    error = failure(lab, "-i", "lo")
    assert "interface lo: the driver does not support native XDP; use --generic" in error, error
    line = lab.inside("server", "setpriv", "--reuid=65534", "--clear-groups", BINARY, "drop", "-i", links.SERVER)
    result = subprocess.run(line, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert result.returncode == 1 and "not permitted" in result.stderr and "CAP_BPF" in result.stderr, result.stderr


def test_an_interface_that_goes_ends_it_with_what_it_counted(make_lab, make_drop) -> None:
    lab = make_lab()
    drop = make_drop(lab)
    links.remove(lab)
    output, _ = drop.process.communicate(timeout=LIMIT)
    assert drop.wait() == 1 and "total" in output
    assert "interface server0: interface removed or XDP program detached" in drop.log(), drop.log()
