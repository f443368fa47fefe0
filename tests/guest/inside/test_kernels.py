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


# All parts of the program at once: what is not used is not in it, and no verifier sees it.
EVERYTHING = """interfaces = ["server0"]
mode = "{mode}"
allow = ["203.0.113.0/24", "2001:db8:1::/48"]
block = ["198.51.100.0/24", "198.51.101.7/32", "198.51.102.128/25", "2001:db8:2::/48"]
fragments = "drop"
drop_amplification = true
[quic]
ports = [443]
keys = "{folder}/guard.keys"
retry = "always"
unknown_ids = "drop"
[tcp]
ports = [443]
syn_cookies = "always"
[learn]
file = "{folder}/learned"
after = "1s"
attack = "off"
[capture]
file = "{folder}/dropped.pcapng"
one_in = 1
rate = 1000
[[rule]]
name = "every-field"
source = ["192.0.2.0/24", "2001:db8:3::/48"]
destination = ["192.0.2.0/24", "2001:db8:3::/48"]
protocol = "udp"
source_port = 1000
destination_port = "2000-3000"
length = "100-200"
action = "drop"
[[rule]]
name = "flags"
protocol = "tcp"
tcp_flags = "syn,!ack"
limit = ["1k/s", "1MiB/s"]
per = "source"
ban = "1s"
[[rule]]
name = "payload"
protocol = "udp"
payload = "offset 2: 17 00 03 2a"
action = "drop"
"""


@pytest.mark.parametrize("mode", ["native", "generic"])
@row("guard: Retry, connection IDs, SYN cookies, payloads, samples and learning at once", XDP, ("guard", "--config", GUARD), NEEDS_XDP)
def test_guard_with_everything(ended, tmp_path: Path, mode: str) -> Given:
    with lab() as made:
        made.run("server", "sysctl", "-qw", "net.ipv4.tcp_syncookies=2")
        # A veth takes no answers of the other end's program without one of its own.
        near = ended(Program(made.inside("client"), tmp_path / "near", "drop", "-i", "client0", "--action", "pass"))
        (tmp_path / "guard.keys").write_text("5a" * 32 + "\n")
        (tmp_path / "guard.keys").chmod(0o600)
        file = tmp_path / "guard.toml"
        file.write_text(EVERYTHING.format(mode=mode, folder=tmp_path) + '[admin]\nlisten = "127.0.0.1:9190"\n')
        guard = ended(Program(made.inside("server"), tmp_path / "guard", "guard", "--config", file))
        assert guard.first == f"ready interface=server0 mode={mode}\n"
        host = made.server["ipv4"]

        def listen() -> tuple[socket.socket, socket.socket]:
            bound = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            bound.bind((host, 7000))
            bound.settimeout(LIMIT)
            return bound, socket.create_server((host, 443))

        bound, listener = run_inside(made.server_namespace, listen)
        with bound, listener, udp_socket(made.client_namespace, socket.AF_INET) as sender:
            sender.sendto(b"xx\x17\0\3\x2a", (host, 7000))
            sender.sendto(b"passes", (host, 7000))
            assert bound.recv(100) == b"passes", "the payload's rule drops the other"
            sender.settimeout(LIMIT)
            sender.sendto(b"\xc3\0\0\0\1\x08" + bytes(8) + b"\0\0" + bytes(1190), (host, 443))
            assert sender.recv(200)[0] & 0xF0 == 0xF0, "a Retry packet"
            sender.sendto(b"\x41" + bytes(40), (host, 443))
            run_inside(made.client_namespace, lambda: socket.create_connection((host, 443), LIMIT)).close()
            assert listener.accept()[1][0] == made.client["ipv4"]

        def status() -> dict:
            return json.loads(made.run("server", "curl", "-s", "--max-time", str(LIMIT), "http://127.0.0.1:9190/io"))

        def counted() -> bool:
            seen = {(one["verdict"], one["reason"]): one["packets"] for one in status()["reasons"]}
            wanted = [("answer", "retry"), ("answer", "syn_cookie"), ("drop", "quic_connection"), ("drop", "rule")]
            return all(seen[each] >= 1 for each in wanted) and status()["learn"]["proofs"] >= 1 and status()["capture"]["written"] >= 2

        wait_until(counted, f"a part did nothing: {status()}")
        looked = guard.instructions()
        guard.stop()
        near.stop()
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


# Appendix B.2 of draft-ietf-quic-load-balancers-21: a server ID of 8 bytes and a nonce as long, as one block.
KEY, SERVER_ID, ENCRYPTED = "8f95f09245765f80256934e50c66207f", "ed793a51d49b8f5f", "4dd2d05a7b0de9b2b9907afb5ecf8cc3"


@row("balance: encrypted QUIC-LB connection IDs by IPIP and GUE", XDP, ("balance", "--config", BALANCE), NEEDS_XDP)
def test_balance_by_id(ended, tmp_path: Path) -> Given:
    network = balance.Network(0, nodes=1)
    try:
        key = tmp_path / "quic-lb.key"
        key.write_text(KEY + "\n")
        key.chmod(0o600)

        def text(method: str) -> str:
            return (f'{balance.ADMIN}[[service]]\nname = "udp"\nprotocol = "udp"\nlisten = "{balance.VIP}:{balance.PORT}"\n'
                    f'route = "quic-lb"\n[[service.quic_lb]]\nconfig = 0\nkey_file = "{key}"\nnonce = 8\n[[service.node]]\n'
                    f'address = "{network.address("n1")}"\nmethod = "{method}"\nserver_id = "{SERVER_ID}"\n')

        def sniffer() -> socket.socket:
            made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
            made.bind((balance.INTERFACE, 0))
            made.settimeout(0.5)
            return made

        balancer = ended(balance.Balancer(network, tmp_path / "balance", text("ipip")))
        assert balancer.ready == f"ready interface={balance.INTERFACE} mode=native\n", balancer.log()
        sniffed = run_inside(network.namespace("n1"), sniffer)
        sender = udp_socket(network.namespace("client"), socket.AF_INET)
        payload = b"\x40\x10" + bytes.fromhex(ENCRYPTED) + b"to the node" + bytes(10)

        def arrives(protocol: int, behind: int) -> bool:
            # The outer IP header, what is behind it, and the whole inner packet.
            sender.sendto(payload, (balance.VIP, balance.PORT))
            try:
                frame = sniffed.recv(2000)
            except TimeoutError:
                return False
            inner = frame[14 + 20 + behind:]
            return frame[23] == protocol and inner[:1] == b"\x45" and inner[28:28 + len(payload)] == payload

        with sniffed, sender:
            wait_until(lambda: arrives(4, 0), "nothing comes by IP in IP")
            balancer.reload(text("gue"))
            wait_until(lambda: arrives(17, 8), "nothing comes by GUE")
        (node,) = balancer.nodes().values()
        assert 0 < node["packets_by_id"] == node["packets"], node
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


@row("gen: live frames", XDP, ("gen", "udp", "--to", "CLIENT:7000", "--io", "live", "--rate", "1", "--count", "1"), NEEDS_XDP)
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


@row("dump: both points of XDP programs, drops with their reasons, and a filter", XDP,
     ("dump", "-i", "server0", "--point", "both", "--drops", "-c", "1"), NEEDS_XDP)  # fmt: skip
def test_dump_with_everything(ended, tmp_path: Path) -> Given:
    with lab() as made:
        filtering = ended(Program(made.inside("server"), tmp_path / "drop", "drop", "-i", "server0", "--action", "count"))
        words = ("-i", "server0", "--point", "both", "--drops", "--json")
        dump = ended(Dump(made, tmp_path / "dump", "server", *words, f"udp dst port {PORT} and ip[8] > 1"))
        sender = udp_socket(made.client_namespace, socket.AF_INET)

        def shown() -> bool:
            # Nobody listens there.
            sender.sendto(b"x", (made.server["ipv4"], PORT))
            assert answers(made), "what the filter leaves out"
            text = "".join(dump.lines())
            assert "ICMP echo" not in text, text
            return all(part in text for part in ('"point":"xdp_entry"', '"point":"xdp_exit"', '"verdict":"pass"', '"dropped":"'))

        wait_until(shown, f"not all of it is shown: {dump.log()}\n{dump.lines()}")
        sender.close()
        looked = Program.instructions(dump)  # type: ignore[arg-type]
        dump.stop()
        filtering.stop()
    notes = [line.removeprefix("expressway: ") for line in dump.log().splitlines() if line.startswith("expressway: ")]
    return Given(looked, "; ".join(notes))


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
