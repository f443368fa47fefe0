"""The programs at the edge of a network on one interface, with a server: in a libxdp dispatcher, each in its turn."""

import functools
import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import clients, kernel
from harness.balance import INTERFACE, PORT, VIP, Balancer, Client, Network
from harness.captures import dumps
from harness.daemon import Daemon
from harness.lab import Lab
from harness.namespace import run_inside, udp_socket
from harness.paths import BINARY, LIMIT, PEERS, run
from harness.server import Server, Settings, address
from harness.top import Top, dropped, tops

GUARD, BALANCE, FORWARD, SERVE = "expressway_grd", "expressway_lb", "expressway_fwd", "expressway_udp"
TURNS = [GUARD, BALANCE, FORWARD, SERVE]
# The client's address that the filter drops.
BLOCKED = "10.77.0.66"
# A network behind a node, that the balancer routes to.
BEHIND = "198.51.100.1"
SERVICE_PORT = 8443


@functools.cache
def loads_extensions() -> bool:
    """Whether the kernel lets libxdp replace a function of a program: security policies forbid it to root too."""
    name = f"ext-{os.getpid()}"
    run(["ip", "netns", "add", name])
    try:
        run(["ip", "-n", name, "link", "add", "ext0", "type", "veth", "peer", "name", "ext1"])
        enter = ["ip", "netns", "exec", name, "xdp-loader"]
        subprocess.run([*enter, "load", "-m", "native", "ext0", PEERS / "no_ping.o"], capture_output=True, check=False)
        loads = "xdp_dispatcher" in run([*enter, "status", "ext0"])
        subprocess.run([*enter, "unload", "ext0", "--all"], capture_output=True, check=False)
        return loads
    finally:
        run(["ip", "netns", "del", name])


@pytest.fixture(autouse=True)
def bpffs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A BPF file system of the test's own; none of the tests runs where libxdp itself cannot make a dispatcher."""
    folder = tmp_path / "bpf"
    folder.mkdir()
    run(["mount", "-t", "bpf", "bpf", folder])
    monkeypatch.setenv("LIBXDP_BPFFS", str(folder))
    try:
        if not loads_extensions():
            kernel.lacks("this kernel refuses BPF_PROG_TYPE_EXT")
        yield folder
    finally:
        run(["umount", "-l", folder])


class Host:
    """A host of the network as the server's side of a lab, and the client as the other."""

    def __init__(self, network: Network, name: str) -> None:
        self._network = network
        self._names = {"server": name, "client": "client"}
        self.server_namespace, self.client_namespace = network.namespace(name), network.namespace("client")

    def inside(self, role: str, *command: str | Path) -> list[str]:
        """The command line that runs `command` there."""
        return ["ip", "netns", "exec", self._network.namespace(self._names[role]), *map(str, command)]

    def run(self, role: str, *command: str | Path) -> str:
        """Runs a command there to its end."""
        return run(self.inside(role, *command))


class Guard(Daemon):
    """A filter of the host."""

    def __init__(self, host: Host, folder: Path, blocked: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.file, self.log_file = folder / "guard.toml", folder / "guard.log"
        self.write(blocked)
        with self.log_file.open("ab") as log:
            command = host.inside("server", BINARY, "guard", "--config", self.file)
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout
        self.ready = self.process.stdout.readline()
        assert self.ready == f"ready interface={INTERFACE} mode=native\n", self.log()

    def write(self, blocked: str) -> None:
        """Another list."""
        self.file.write_text(f'interfaces = ["{INTERFACE}"]\nchain = true\nblock = ["{blocked}"]\n')


class Balance(Balancer):
    """A balancer that is not alone."""

    def left(self) -> list[str]:
        """Others have programs there too."""
        return []


class Forward(Daemon):
    """A router on the host."""

    def __init__(self, host: Host, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        file, self.log_file = folder / "forward.toml", folder / "forward.log"
        file.write_text(f'interfaces = ["{INTERFACE}"]\nchain = true\n')
        with self.log_file.open("ab") as log:
            command = host.inside("server", BINARY, "forward", "--config", file, "--json")
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout
        assert '"ready"' in self.process.stdout.readline(), self.log()

    def forwarded(self) -> int:
        """Packets that it sent on itself."""
        assert self.process.stdout
        self.signal(signal.SIGUSR1)
        return json.loads(self.process.stdout.readline())["total"].get("redirect", {}).get("forwarded", 0)


class Edge:
    """The network and what runs on its balancer's host."""

    def __init__(self, folder: Path, certificates: Path, root: Path) -> None:
        self.network = Network(0, nodes=2)
        for name in self.network.nodes:
            self.network.serve(name)
        self.host = Host(self.network, "lb")
        self.folder, self.certificates, self.root = folder, certificates, root
        self.running: dict[str, Daemon] = {}
        self.started = 0
        net = self.network
        net.ip("client", "address", "add", f"{BLOCKED}/24", "dev", INTERFACE)
        net.ip("client", "route", "add", f"{BEHIND}/32", "via", net.address("lb"))
        net.ip("lb", "route", "add", f"{BEHIND}/32", "via", net.address("n1"))
        net.ip("n1", "address", "add", f"{BEHIND}/32", "dev", "lo")
        for key in ("net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"):
            net.inside("lb", "sysctl", "-qw", f"{key}=1")
        net.inside("lb", "sysctl", "-qw", "net.ipv4.conf.all.send_redirects=0")
        # Known, so that the first packet that counts is forwarded.
        net.inside("lb", "ping", "-c1", net.address("n1"))
        self.bound = udp_socket(net.namespace("n1"), socket.AF_INET)
        self.bound.bind((BEHIND, 5000))

    def start(self, name: str) -> None:
        """One more program."""
        self.started += 1
        folder = self.folder / f"{name}-{self.started}"
        self.running[name] = {
            GUARD: lambda: Guard(self.host, folder, BLOCKED),
            BALANCE: lambda: self._balance(folder),
            FORWARD: lambda: Forward(self.host, folder),
            SERVE: lambda: self._serve(folder),
        }[name]()

    def _balance(self, folder: Path) -> Balance:
        nodes = "".join(f'[[service.node]]\naddress = "{self.network.address(name)}"\n' for name in self.network.nodes)
        text = f'chain = true\n[[service]]\nname = "tcp"\nprotocol = "tcp"\nlisten = ["{VIP}:{PORT}"]\n{nodes}'
        balancer = Balance(self.network, folder, text)
        assert balancer.ready == f"ready interface={INTERFACE} mode=native\n", balancer.log()
        return balancer

    def _serve(self, folder: Path) -> Server:
        folder.mkdir(parents=True)
        listen = [address(self.network.address("lb"), SERVICE_PORT)]
        settings = Settings(self.certificates, self.root, listen, mode="copy", beside=True, admin=9280,
                            more={"io": {"dispatcher": '"always"'}})  # fmt: skip
        return Server(self.host, folder, settings).wait_ready()  # type: ignore[arg-type]

    def programs(self) -> list[str]:
        """The components, in their order."""
        listed = self.network.inside("lb", "xdp-loader", "status", INTERFACE)
        return re.findall(r"=>\s+\d+\s+(\S+)", listed)

    def from_blocked(self) -> bool:
        """Whether the blocked address reaches the balanced service."""

        def connect() -> bool:
            made = socket.socket()
            made.bind((BLOCKED, 0))
            made.settimeout(1.5)
            try:
                made.connect((VIP, PORT))
            except OSError:
                return False
            finally:
                made.close()
            return True

        return run_inside(self.network.namespace("client"), connect)

    def check(self) -> None:
        """Each that runs does its work, and what passes one reaches the next."""
        wait_until(lambda: self.programs() == [name for name in TURNS if name in self.running], lambda: str(self.programs()))
        if BALANCE in self.running:
            client = Client(self.network)
            assert client.ask() in self.network.nodes
            client.close()
            assert self.from_blocked() == (GUARD not in self.running), "the filter comes first"
        if FORWARD in self.running:
            forward = self.running[FORWARD]
            assert isinstance(forward, Forward)
            before, sender = forward.forwarded(), udp_socket(self.network.namespace("client"), socket.AF_INET)
            self.bound.settimeout(LIMIT)
            sender.sendto(b"one", (BEHIND, 5000))
            assert self.bound.recv(100) == b"one"
            assert forward.forwarded() > before, "by the program"
        if SERVE in self.running:
            server = self.running[SERVE]
            assert isinstance(server, Server)
            before = server.metrics().sum("rx_xsk_packets_total")
            (answer,) = clients.fetch(self.host, "quicgo", server.settings.listen[0], self.certificates, ["/small.txt"])  # type: ignore[arg-type]
            assert answer.status == 200
            server.wait_for("packets by AF_XDP", lambda m: m.sum("rx_xsk_packets_total") > before)

    def down(self) -> None:
        """Ends all of it."""
        for daemon in self.running.values():
            if daemon.process.poll() is None:
                daemon.process.kill()
                daemon.process.wait(LIMIT)
        self.bound.close()
        self.network.down()


def wait_until(condition: Callable[[], bool], what: Callable[[], str]) -> None:
    """Waits for something to be so."""
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.05)


@pytest.fixture
def edge(bpffs: Path, tmp_path: Path, certificates: Path, root: Path) -> Iterator[Edge]:
    """The network."""
    made = Edge(tmp_path, certificates, root)
    yield made
    made.down()


ORDERS = [
    ([GUARD, BALANCE, FORWARD, SERVE], [GUARD, BALANCE, FORWARD, SERVE]),
    ([SERVE, FORWARD, BALANCE, GUARD], [BALANCE, SERVE, GUARD, FORWARD]),
    ([FORWARD, GUARD, SERVE, BALANCE], [SERVE, FORWARD, BALANCE, GUARD]),
]


@pytest.mark.parametrize(("come", "go"), ORDERS, ids=["in turn", "reversed", "mixed"])
def test_they_take_turns_in_whatever_order_they_come_and_go(edge: Edge, bpffs: Path, come: list[str], go: list[str]) -> None:
    for name in come:
        edge.start(name)
    edge.check()
    for name in go:
        edge.running.pop(name).stop()
        if edge.running:
            edge.check()
    assert "xdp" not in edge.network.inside("lb", "ip", "link", "show", INTERFACE)
    for folder in ("xdp", "expressway"):
        assert not list((bpffs / folder).iterdir()), folder


@pytest.mark.parametrize("killed", TURNS)
def test_one_that_is_killed_leaves_the_others_at_work_and_is_replaced(edge: Edge, bpffs: Path, killed: str) -> None:
    for name in TURNS:
        edge.start(name)
    edge.check()
    edge.running.pop(killed).kill()
    # Its program is pinned and goes on, as far as it can without its process; the others are not touched.
    assert edge.programs() == TURNS
    client = Client(edge.network)
    assert client.ask() in edge.network.nodes
    client.close()
    assert not edge.from_blocked()
    edge.start(killed)
    edge.check()
    for name in TURNS:
        edge.running.pop(name).stop()
    assert "xdp" not in edge.network.inside("lb", "ip", "link", "show", INTERFACE)
    assert not list((bpffs / "expressway").iterdir())


def test_top_and_dump_tell_which_of_them_dropped_and_why(edge: Edge, tmp_path: Path) -> None:
    net, nowhere = edge.network, "198.51.100.99"
    net.ip("lb", "route", "add", "blackhole", f"{nowhere}/32")
    net.ip("client", "route", "add", f"{nowhere}/32", "via", net.address("lb"))
    for name in TURNS:
        edge.start(name)
    edge.check()
    with tops(tmp_path) as make_top, dumps(tmp_path) as make_dump, udp_socket(net.namespace("client"), socket.AF_INET) as sender:
        lab: Lab = edge.host  # type: ignore[assignment]
        top, other = make_top(lab, INTERFACE), make_top(lab, INTERFACE)
        dump = make_dump(lab, "server", "-i", INTERFACE, "--json", f"src host {BLOCKED} or dst host {nowhere}")
        top.needs_tracing()

        def told() -> None:
            """Each of the three says why, of the filter and of the router."""
            before = {reason: dropped(top.last(), "xdp", reason) for reason in ("blocked", "blackhole")}
            before_lines = len(dump.lines())

            def counted(one: Top) -> bool:
                return all(dropped(one.last(), "xdp", reason) > count for reason, count in before.items())

            def shown() -> set[tuple[str, str | None, str]]:
                lines = map(json.loads, dump.lines()[before_lines:])
                return {(line["verdict"], line.get("dropped"), line["destination"]) for line in lines}

            def all_told() -> bool:
                # Again and again: what a dispatcher drops before an observer finds it has no reason.
                assert not edge.from_blocked()
                sender.sendto(b"one", (nowhere, 5000))
                return counted(top) and counted(other) and {("drop", "blocked", VIP), ("drop", "blackhole", nowhere)} <= shown()

            wait_until(all_told, lambda: f"{shown()} {[(one.last()['drops'], one.last()['notes']) for one in (top, other)]}")

        told()
        # Another filter is another component of another dispatcher.
        guard = edge.running[GUARD]
        assert isinstance(guard, Guard)
        guard.signal(signal.SIGHUP)
        guard.wait_log("configuration reloaded", 1)
        assert isinstance(edge.running[FORWARD], Forward)
        edge.check()
        told()
        assert {one["reason"] for one in top.last()["drops"] if one["by"] == "xdp"} <= {"blocked", "blackhole", "no-node"}
        dump.stop()


@pytest.mark.parametrize("first", [GUARD, SERVE])
def test_a_filter_guards_a_server_and_is_changed_in_front_of_it(edge: Edge, first: str) -> None:
    for name in (first, *({GUARD, SERVE} - {first})):
        edge.start(name)
    edge.check()
    guard = edge.running[GUARD]
    assert isinstance(guard, Guard)
    program = edge.network.inside("lb", "xdp-loader", "status", INTERFACE)
    # The server's client is blocked, and no more.
    ping = ["ip", "netns", "exec", edge.network.namespace("client"), "ping", "-c1", "-W1", edge.network.address("lb")]
    answers = lambda: subprocess.run(ping, capture_output=True, check=False).returncode == 0  # noqa: E731
    for number, (blocked, passes) in enumerate([(edge.network.address("client"), False), (BLOCKED, True)], start=1):
        guard.write(blocked)
        guard.signal(signal.SIGHUP)
        guard.wait_log("configuration reloaded", number)
        assert answers() == passes
    assert edge.network.inside("lb", "xdp-loader", "status", INTERFACE) != program, "other programs take their places"
    edge.check()
