"""What this kernel gives of each command that loads BPF programs: the programs at work on packets; or, where the kernel is
too old, the one line that says so. `tests/guest/kernels.py` makes a table of it."""

import json
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import balance, clients, router
from harness.captures import Dump
from harness.daemon import Daemon
from harness.fanout import FEED_PORT, TCP_PORT, Fanout, Sender, Subscriber
from harness.lab import Lab
from harness.namespace import run_inside, udp_socket
from harness.paths import BINARY, HOST, LIMIT, PEERS, run
from harness.recv import PORT, Peer, Recv
from harness.server import Server, Settings, address
from harness.top import Top
from rows import RUNNING, Given, Program, lab, row

# XDP on packets in several buffers, which all of our XDP programs are for.
XDP = (5, 18)
NEEDS_XDP = "needs Linux 5.18 or newer"
# Workers wait by epoll_pwait2.
WORKERS = (5, 11)
NEEDS_WORKERS = "epoll_pwait2: Function not implemented"


# What the router says where no device says that it can send redirected frames.
OLDER = "Linux before 6.3 does not tell"


def config(name: str, text: str) -> Path:
    """A configuration file at a place that a decorator can name."""
    file = Path("/tmp", name)
    file.write_text(text)
    return file


GUARD = config("guard.toml", 'interfaces = ["server0"]\nblock = ["198.51.100.0/24"]\n')
FORWARD = config("forward.toml", 'interfaces = ["server0"]\n')
SERVICE = '[[service]]\nname = "tcp"\nprotocol = "tcp"\nlisten = ["10.77.0.100:4433"]\n[[service.node]]\naddress = "10.77.0.21"\n'
BALANCE = config("balance.toml", f'interfaces = ["server0"]\n{SERVICE}')


@pytest.fixture
def ended() -> Iterator[Callable[[Daemon], Daemon]]:
    """Has daemons end well when the test is over."""
    running: list[Daemon] = []

    def keep(daemon: Daemon) -> Daemon:
        running.append(daemon)
        return daemon

    yield keep
    for daemon in reversed(running):
        if daemon.process.poll() is None:
            daemon.process.kill()
            daemon.process.wait()


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Waits for something to be so."""
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def answers(made: Lab) -> bool:
    """Whether the server answers the client's echo request."""
    command = made.inside("client", "ping", "-c1", "-W1", made.server["ipv4"])
    return subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode == 0


@pytest.mark.parametrize("mode", ["native", "generic"])
@row("guard: lists and rules", XDP, ("guard", "--config", GUARD), NEEDS_XDP)
def test_guard(ended, tmp_path: Path, mode: str) -> Given:
    with lab() as made:
        assert answers(made)
        rule = '[[rule]]\nname = "ping"\nprotocol = "icmp"\naction = "{}"\n'
        head = f'interfaces = ["server0"]\nmode = "{mode}"\nblock = ["198.51.100.0/24"]\n'
        file = tmp_path / "guard.toml"
        file.write_text(head + rule.format("drop"))
        guard = ended(Program(made.inside("server"), tmp_path / "guard", "guard", "--config", file))
        assert guard.first == f"ready interface=server0 mode={mode}\n"
        assert not answers(made)
        file.write_text(head + rule.format("pass"))
        guard.signal(signal.SIGHUP)
        guard.wait_log("configuration reloaded")
        assert answers(made)
        looked = guard.instructions()
        guard.stop()
    return Given(looked)


@row("guard: limits and bans", XDP, ("guard", "--config", GUARD), NEEDS_XDP)
def test_guard_limits(ended, tmp_path: Path) -> Given:
    with lab() as made:
        file = tmp_path / "guard.toml"
        file.write_text('interfaces = ["server0"]\n[[rule]]\nname = "ping"\nprotocol = "icmp"\nlimit = "1/s"\nper = "source"\n'
                        'burst = 1\nban = "1h"\n')
        guard = ended(Program(made.inside("server"), tmp_path / "guard", "guard", "--config", file))
        command = made.inside("client", "ping", "-c", "20", "-i", "0.01", "-W", "1", made.server["ipv4"])
        said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        assert 0 < said.count("bytes from") < 20, said
        assert not answers(made), "banned"
        looked = guard.instructions()
        guard.stop()
    return Given(looked)


@row("forward: routes", XDP, ("forward", "--config", FORWARD), NEEDS_XDP)
def test_forward(ended, tmp_path: Path) -> Given:
    network = router.Network()
    try:
        forward = ended(router.Forward(network, tmp_path / "forward", 'interfaces = ["e1", "e2"]\n').wait_ready())
        bound = udp_socket(network.hosts[2], socket.AF_INET)
        bound.bind(("10.2.0.2", 5000))
        bound.settimeout(LIMIT)
        sender = udp_socket(network.hosts[1], socket.AF_INET)

        if RUNNING < (6, 3):
            # No device says that it sends redirected frames: the kernel does the work, and the log says why.
            forward.wait_log(OLDER)
            sender.sendto(b"one", ("10.2.0.2", 5000))
            assert bound.recv(100) == b"one"
            return Given(Program.instructions(forward), f"passes to the kernel: {OLDER}", gives=False)  # type: ignore[arg-type]

        def passes() -> bool:
            sender.sendto(b"one", ("10.2.0.2", 5000))
            assert bound.recv(100) == b"one"
            return forward.forwarded() >= 3

        wait_until(passes, "nothing is forwarded by the program")
        looked = Program.instructions(forward)  # type: ignore[arg-type]
        egress = forward.statistics()["interfaces"][0]["egress"]
        forward.stop()
    finally:
        network.down()
    return Given(looked, "" if egress else "what devices refuse is not counted")


@row("forward: feeds are copied", XDP, ("forward", "--config", FORWARD), NEEDS_XDP)
def test_forward_feeds(ended, tmp_path: Path) -> Given:
    network = router.Network()
    try:
        text = ('interfaces = ["e1", "e2"]\n[[replicate]]\nlisten = "239.1.1.1:5000"\n'
                'to = [{ address = "10.2.0.2:6000" }, { address = "10.2.0.2:6001" }]\n')
        forward = ended(router.Forward(network, tmp_path / "forward", text).wait_ready())
        if RUNNING < (6, 3):
            forward.wait_log(OLDER)
            problems = {one["problem"] for one in forward.statistics()["feeds"][0]["receivers"]}
            assert None not in problems, problems
            return Given(says=f"{problems.pop()}: {OLDER}", gives=False)
        sockets = []
        for port in (6000, 6001):
            bound = udp_socket(network.hosts[2], socket.AF_INET)
            bound.bind(("10.2.0.2", port))
            bound.settimeout(LIMIT)
            sockets.append(bound)
        resolved = lambda: all(one["problem"] is None for one in forward.statistics()["feeds"][0]["receivers"])  # noqa: E731
        wait_until(resolved, "its receivers are never resolved")
        udp_socket(network.hosts[1], socket.AF_INET, "eth0").sendto(b"one", ("239.1.1.1", 5000))
        assert [bound.recv(100) for bound in sockets] == [b"one", b"one"]
        looked = Program.instructions(forward)  # type: ignore[arg-type]
        forward.stop()
    finally:
        network.down()
    return Given(looked)


@row("balance: connections reach a node", XDP, ("balance", "--config", BALANCE), NEEDS_XDP)
def test_balance(ended, tmp_path: Path) -> Given:
    network = balance.Network(0, nodes=1)
    try:
        network.serve("n1")
        balancer = ended(balance.Balancer(network, tmp_path / "balance", SERVICE))
        assert balancer.ready == f"ready interface={balance.INTERFACE} mode=native\n", balancer.log()
        client = balance.Client(network)
        assert client.ask() == "n1"
        client.close()
        looked = Program.instructions(balancer)  # type: ignore[arg-type]
        balancer.stop()
    finally:
        network.down()
    return Given(looked)


@row("drop: every action", XDP, ("drop", "-i", "server0"), NEEDS_XDP)
def test_drop(ended, tmp_path: Path) -> Given:
    looked = 0
    with lab() as made:
        for action in ("drop", "touch", "pass", "count", "tx", "redirect"):
            to = ("--to", "server0") if action == "redirect" else ()
            words = ("drop", "-i", "server0", "--action", action, *to)
            program = ended(Program(made.inside("server"), tmp_path / action, *words))
            assert answers(made) == (action in ("pass", "count")), action
            looked = max(looked, program.instructions())
            program.stop()
    return Given(looked)


@row("gen: live frames", XDP, ("gen", "udp", "--to", "SERVER:7000", "--io", "live", "--rate", "1", "--count", "1"), NEEDS_XDP)
def test_live_frames() -> Given:
    with lab() as made:
        bound = udp_socket(made.server_namespace, socket.AF_INET)
        bound.bind((made.server["ipv4"], 7000))
        bound.settimeout(LIMIT)
        words = ["gen", "udp", "--to", f"{made.server['ipv4']}:7000", "--io", "live", "--rate", "100", "--count", "50", "--json"]
        assert json.loads(made.run("client", BINARY, "--log-level", "error", *words))["sent"] == 50
        assert len([bound.recv(100) for _ in range(50)]) == 50
    return Given()


def received(ended, folder: Path, *flags: str) -> dict:  # type: ignore[no-untyped-def]
    """The report of a receiver that is sent 50 datagrams."""
    with lab() as made:
        recv = ended(Recv(made, folder, *flags))
        recv.wait_ready()
        Peer(made, made.server["ipv4"]).send(50, size=200)
        wait_until(lambda: recv.process.poll() is not None, f"the datagrams never come: {recv.log()}")
        return recv.report()


@row("kernel sockets", WORKERS, ("recv", "--listen", f"SERVER:{PORT}", "--io", "udp"), NEEDS_WORKERS)
def test_kernel_sockets(ended, tmp_path: Path) -> Given:
    assert received(ended, tmp_path, "--io", "udp", "--count", "50")["by"]["kernel"] == 50
    return Given()


@row("AF_XDP in copy mode", XDP, ("recv", "--listen", f"SERVER:{PORT}", "--io", "copy"), NEEDS_XDP)
def test_af_xdp(ended, tmp_path: Path) -> Given:
    assert received(ended, tmp_path, "--io", "copy", "--count", "50")["by"]["af_xdp"] == 50
    return Given()


@row("AF_XDP: time stamps of the XDP program", XDP, ("recv", "--listen", f"SERVER:{PORT}", "--io", "copy"), NEEDS_XDP)
def test_stamps(ended, tmp_path: Path) -> Given:
    assert received(ended, tmp_path, "--io", "copy", "--timestamps", "--count", "50")["stamped"]["xdp"] == 50
    return Given()


@row("`auto` serves by the best that there is", WORKERS, ("recv", "--listen", f"SERVER:{PORT}"), NEEDS_WORKERS)
def test_auto(ended, tmp_path: Path) -> Given:
    folder = tmp_path / "certificates"
    run([BINARY, "cert", "--host", HOST, "--out", folder])
    (tmp_path / "www").mkdir()
    (tmp_path / "www" / "small.txt").write_text("A small file.\n")
    with lab() as made:
        settings = Settings(folder, tmp_path / "www", [address(made.server["ipv4"])], mode="auto")
        server = ended(Server(made, tmp_path, settings)).wait_ready()
        (answer,) = clients.fetch(made, "quicgo", settings.listen[0], folder, ["/small.txt"])
        assert answer.status == 200
        obtained = server.obtained()
        server.stop()
    assert (obtained == "udp") == (RUNNING < XDP), obtained
    return Given(says=f"io={obtained}")


@row("dispatcher: beside another program", XDP,
     ("recv", "--listen", f"SERVER:{PORT}", "--io", "copy"), NEEDS_XDP)  # fmt: skip
def test_dispatcher(ended, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Given:
    bpffs = tmp_path / "bpf"
    bpffs.mkdir()
    run(["mount", "-t", "bpf", "bpf", bpffs])
    monkeypatch.setenv("LIBXDP_BPFFS", str(bpffs))
    with lab() as made:
        made.run("server", "xdp-loader", "load", "-m", "native", "server0", PEERS / "no_ping.o")
        recv = ended(Recv(made, tmp_path, "--io", "copy", "--count", "50"))
        recv.wait_ready()
        assert not answers(made), "the other program goes on"
        Peer(made, made.server["ipv4"]).send(50, size=200)
        wait_until(lambda: recv.process.poll() is not None, f"the datagrams never come: {recv.log()}")
        assert recv.wait() == 0
        by = json.loads(recv.output)["by"]
        assert by["af_xdp"] == 50, by
        made.run("server", "xdp-loader", "unload", "server0", "--all")
    return Given()


@row("fanout: forwarding in the kernel", (6, 6),
     ("fanout", "--mode", "kernel", "--udp", f"SERVER:{FEED_PORT}", "--framing", "len32", "--tcp", f"SERVER:{TCP_PORT}"),
     "use --mode user")  # fmt: skip
def test_fanout(ended, tmp_path: Path) -> Given:
    with lab() as made:
        host = made.server["ipv4"]
        words = ("--mode", "kernel", "--udp", address(host, FEED_PORT), "--framing", "len32", "--tcp", address(host, TCP_PORT))
        fanout = ended(Fanout(made, tmp_path, *words)).wait_ready()
        subscriber, sender = Subscriber(made, host), Sender(made, host)
        subscriber.socket.settimeout(0.5)

        def comes() -> bool:
            sender.send()
            try:
                return bool(subscriber.socket.recv(1, socket.MSG_PEEK))
            except TimeoutError:
                return False

        wait_until(comes, "no datagram comes")
        fanout.stop()
    return Given()


@row("dump: the kernel's path and XDP verdicts", XDP, ("dump", "-i", "server0", "-c", "1"), NEEDS_XDP)
def test_dump(ended, tmp_path: Path) -> Given:
    with lab() as made:
        filtering = ended(Program(made.inside("server"), tmp_path / "drop", "drop", "-i", "server0", "--action", "count"))
        dump = ended(Dump(made, tmp_path / "dump", "server", "-i", "server0", "--json", "icmp"))

        def shown() -> bool:
            assert answers(made)
            return '"verdict":"pass"' in "".join(dump.lines())

        wait_until(shown, f"no packet of the XDP program is shown: {dump.log()}")
        dump.stop()
        filtering.stop()
    notes = [line.removeprefix("expressway: ") for line in dump.log().splitlines() if line.startswith("expressway: ")]
    return Given(says="; ".join(notes))


@row("top: flows", XDP, ("top", "-i", "server0", "--once", "--json"), NEEDS_XDP)
def test_top(ended, tmp_path: Path) -> Given:
    with lab() as made:
        top = ended(Top(made, tmp_path / "top", "server0"))
        bound = run_inside(made.server_namespace, lambda: socket.create_server((made.server["ipv4"], 7000)))
        connected = run_inside(made.client_namespace, lambda: socket.create_connection((made.server["ipv4"], 7000)))
        document = top.wait_for(lambda one: any(flow["local_port"] == 7000 for flow in one["rows"]), "the connection")
        connected.close()
        bound.close()
        top.stop()
    return Given(says="; ".join(document["notes"]))
