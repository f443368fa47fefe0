"""`expressway balance` between real clients and real nodes, which answer directly."""

import json
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import clients as peers
from harness.balance import INTERFACE, PORT, VIP, VIP6, Balancer, Client, Network
from harness.daemon import finish_all
from harness.namespace import run_inside
from harness.paths import BINARY, LIMIT, LONG_CLIP, run

ADMIN = '[admin]\nlisten = "127.0.0.1:9180"\n'


def nodes(names: list[str], **more: str) -> str:
    """Nodes of a service; `more` has further lines by name."""
    tables = []
    for name in names:
        host = 20 + int(name[1:])
        tables.append(f'[[service.node]]\naddress = "10.77.0.{host}"\n{more.get(name, "")}')
    return "\n".join(tables) + "\n"


def services(names: list[str], check: str = "", **more: str) -> str:
    """A file with a service for TCP and one for UDP, at an IPv4 and an IPv6 address."""
    text = ADMIN
    for protocol in ("tcp", "udp"):
        text += f'[[service]]\nname = "{protocol}"\nprotocol = "{protocol}"\n'
        text += f'listen = ["{VIP}:{PORT}", "[{VIP6}]:{PORT}"]\n{check}{nodes(names, **more)}'
    return text


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Waits for something to be so."""
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


@pytest.fixture
def network() -> Iterator[Network]:
    """The network, with servers on all nodes."""
    made = Network(0)
    for name in made.nodes:
        made.serve(name)
    yield made
    made.down()


@pytest.fixture
def make_balancer(network: Network, tmp_path: Path) -> Iterator[Callable[..., Balancer]]:
    """Starts balancers, each of which has to be alive at the end unless the test ended it, and to stop cleanly."""
    running: list[Balancer] = []

    def make(text: str, *words: str) -> Balancer:
        running.append(Balancer(network, tmp_path / f"balancer-{len(running)}", text, *words))
        made = running[-1]
        assert made.ready == f"ready interface={INTERFACE} mode=native\n", made.log()
        known = lambda: all(node["interface"] for service in (0, 1) for node in made.nodes(service).values())  # noqa: E731
        wait_until(known, "the nodes' MAC addresses are never known")
        return made

    yield make
    finish_all(list(running))


Made = Callable[..., Balancer]


def test_connections_and_flows_spread_and_stay(network: Network, make_balancer: Made) -> None:
    """TCP and UDP over IPv4 and IPv6; each keeps its node, and statistics add up."""
    balancer = make_balancer(services(network.nodes))
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        for to in (VIP, VIP6):
            clients = [Client(network, kind, to) for _ in range(40)]
            first = [client.ask() for client in clients]
            assert set(first) == set(network.nodes)
            assert [client.ask() for client in clients] == first
            for client in clients:
                client.close()
    for service in (0, 1):
        assert sum(node["flows_begun"] for node in balancer.nodes(service).values()) == 80
    metrics = balancer.admin("/metrics")
    assert 'balance_node_up{service="udp",node="10.77.0.21"} 1' in metrics
    assert balancer.admin("/healthz") == "ok\n"


def test_changes_move_no_established_flow(network: Network, make_balancer: Made) -> None:
    """Nodes that are added, drained, weighted and returned; only those of a removed node move."""
    balancer = make_balancer(services(["n1", "n2"]))
    clients = [Client(network, kind) for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM) for _ in range(30)]
    homes = [client.ask() for client in clients]
    for _ in range(4):
        assert [client.ask() for client in clients] == homes
    balancer.reload(services(["n1", "n2", "n3"], n1="weight = 1", n3="weight = 100"))
    assert [client.ask() for client in clients] == homes
    newcomers = [Client(network, socket.SOCK_DGRAM) for _ in range(60)]
    assert sum(client.ask() == "n3" for client in newcomers) > 45, "100 of 102 parts of the weight"
    balancer.reload(services(["n1", "n2", "n3"], n1="drain = true"))
    assert [client.ask() for client in clients] == homes
    assert all(Client(network).ask() != "n1" for _ in range(20))
    assert balancer.nodes()[network.address("n1")]["state"] == "draining"
    balancer.reload(services(["n1", "n2", "n3"]))
    assert [client.ask() for client in clients] == homes
    balancer.reload(services(["n2", "n3"]))
    udp = clients[30:]
    now = [client.ask() for client in udp]
    assert "n1" not in now
    assert all(here == home for here, home in zip(now, homes[30:], strict=True) if home != "n1")


def test_an_invalid_file_changes_nothing(network: Network, make_balancer: Made) -> None:
    """It is refused with file, line and key, at the start with exit code 2."""
    balancer = make_balancer(services(["n1"]))
    balancer.config.write_text(services(["n1"]).replace("protocol", "protokoll"))
    balancer.signal(signal.SIGHUP)
    balancer.wait_log("not reloaded")
    assert "protokoll" in balancer.log()
    assert Client(network).ask() == "n1"
    result = subprocess.run([BINARY, "balance", "--config", balancer.config], capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert result.stderr.startswith(f"expressway: {balancer.config}:5: service.0.protokoll: ")
    assert result.stderr.count("\n") == 1


def test_what_needs_a_restart_is_refused_and_all_services_may_be_renamed(network: Network, make_balancer: Made) -> None:
    """A refused file changes nothing, not even its nodes; new names lose no packet's way."""
    balancer = make_balancer(services(["n1"]))
    for number, line in enumerate(('mode = "generic"', "pin = true", "flows = 2048", "seed = 5"), start=1):
        balancer.config.write_text(f"{line}\n{services(['n2'])}")
        balancer.signal(signal.SIGHUP)
        balancer.wait_log("not reloaded", number)
        assert f"`{line.split()[0]}` has changed: restart for that" in balancer.log()
        assert Client(network).ask() == "n1"
    balancer.config.write_text(services(["n2"]).replace("9180", "9181"))
    balancer.signal(signal.SIGHUP)
    balancer.wait_log("`[admin]` has changed")
    times = balancer.log().count("reloaded") + 1
    renamed = services(["n2"]).replace('name = "', 'name = "new-')
    balancer.config.write_text(renamed)
    balancer.signal(signal.SIGHUP)
    balancer.wait_log("reloaded", times)
    assert Client(network).ask() == "n2"
    assert Client(network, socket.SOCK_DGRAM).ask() == "n2"
    checked = subprocess.run([BINARY, "balance", "--check", "--config", balancer.config], capture_output=True, text=True, check=True)
    assert checked.stdout == f"{balancer.config}: ok\n"


def test_a_node_that_dies_and_returns(network: Network, make_balancer: Made) -> None:
    """Health checks take it out and back in; flows of others never notice."""
    check = '[service.check]\nkind = "tcp"\ninterval = "50ms"\nfall = 2\n'
    balancer = make_balancer(services(network.nodes, check))
    clients = [Client(network, socket.SOCK_DGRAM) for _ in range(30)]
    homes = [client.ask() for client in clients]
    assert [client.ask() for client in clients] == homes
    network.servers[0].stop()
    n1 = network.address("n1")
    for service in (0, 1):
        wait_until(lambda service=service: balancer.nodes(service)[n1]["state"] == "down", "n1 is never seen to be down")
    assert balancer.nodes()[n1]["problem"]
    now = [client.ask() for client in clients]
    assert "n1" not in now
    assert all(here == home for here, home in zip(now, homes, strict=True) if home != "n1")
    assert all(Client(network).ask() != "n1" for _ in range(20))
    network.serve("n1")
    for service in (0, 1):
        wait_until(lambda service=service: balancer.nodes(service)[n1]["state"] == "up", "n1 is never seen to be back")
    assert [client.ask() for client in clients] == now, "what has moved stays"
    wait_until(lambda: Client(network).ask() == "n1", "n1 never gets a new connection")


def test_without_any_node_health_says_so(network: Network, make_balancer: Made) -> None:
    """Packets are dropped and counted, and service resumes by itself."""
    check = '[service.check]\nkind = "tcp"\ninterval = "50ms"\nfall = 1\nrise = 1\n'
    balancer = make_balancer(services(["n1"], check))
    network.servers[0].stop()
    wait_until(lambda: "no node is up" in balancer.admin("/healthz"), "/healthz never tells")
    client = Client(network, socket.SOCK_DGRAM)
    client.socket.send(b"who")
    dropped = lambda: json.loads(balancer.admin("/services"))["packets"]["drop"]["no_node"]  # noqa: E731
    wait_until(lambda: dropped() > 0, "never counted")
    network.serve("n1")
    wait_until(lambda: balancer.admin("/healthz") == "ok\n", "/healthz never tells")
    assert client.ask() == "n1"


def test_orders_drain_a_node(network: Network, make_balancer: Made) -> None:
    """By the admin listener, until the opposite order; and only nodes that there are."""
    balancer = make_balancer(services(network.nodes))
    n1 = network.address("n1")
    for drain, state in ((True, "draining"), (False, "up")):
        answer = balancer.admin("/drain", {"service": "tcp", "node": n1, "drain": drain})
        assert n1 in answer
        assert balancer.nodes(0)[n1]["state"] == state
        assert balancer.nodes(1)[n1]["state"] == "up", "the other service's node"
    assert "no node 10.77.0.99 in service `tcp`" in balancer.admin("/drain", {"service": "tcp", "node": "10.77.0.99"})
    assert "unknown field" in balancer.admin("/drain", {"service": "tcp", "node": n1, "when": "now"})


def test_a_flood_of_new_flows_moves_no_established_one(network: Network, make_balancer: Made) -> None:
    """More single packets than there is room for, and then another ring."""
    balancer = make_balancer("flows = 4096\nprobation = 1024\n" + services(["n1", "n2"]))
    clients = [Client(network, kind) for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM) for _ in range(20)]
    homes = [client.ask() for client in clients]
    for _ in range(4):
        assert [client.ask() for client in clients] == homes
    def flood() -> None:
        for _ in range(3000):
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
                stranger.sendto(b"who", (VIP, PORT))

    run_inside(network.namespace("client"), flood)
    flows = balancer.nodes(1).values()
    assert sum(node["flows_begun"] for node in flows) > 2000
    balancer.reload(services(["n1", "n2", "n3"], n3="weight = 100"))
    assert [client.ask() for client in clients] == homes


@pytest.fixture
def gateways(network: Network, root: Path, certificates: Path, tmp_path: Path) -> Iterator[list[str]]:
    """`expressway serve` on all nodes, with connection IDs that balancers can route."""
    for server in network.servers:
        server.stop()
    running = []
    for name in network.nodes:
        config = tmp_path / f"{name}.toml"
        config.write_text(
            f'[server]\nlisten = ["{VIP}:{PORT}"]\nworkers = 2\n[io]\nmode = "udp"\n'
            f'[tls]\ncertificate = "{certificates}/cert.pem"\nprivate_key = "{certificates}/key.pem"\n'
            f'[quic.load_balancing]\nserver_id = "{socket.inet_aton(network.address(name)).hex()}"\n'
            f'[[site]]\nhosts = ["edge.test"]\nroot = "{root}"\n')
        command = ["ip", "netns", "exec", network.namespace(name), BINARY, "serve", "--config", config]
        with (tmp_path / f"{name}.log").open("wb") as log:
            running.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True))
        assert running[-1].stdout
        line = running[-1].stdout.readline()
        assert line.startswith("ready"), (tmp_path / f"{name}.log").read_text()
    yield network.nodes
    for process in running:
        process.send_signal(signal.SIGTERM)
    for process in running:
        process.communicate(timeout=LIMIT)


def test_a_quic_client_whose_port_changes_stays_on_its_node(
    network: Network, gateways: list[str], make_balancer: Made, certificates: Path
) -> None:
    """Over and over, in mid transfer: each new port would be hashed to another node in two cases of three."""
    text = services(gateways).replace('name = "udp"\n', 'name = "udp"\nroute = "quic-lb"\n')
    balancer = make_balancer(text)
    command = peers.command("quicgo", f"{VIP}:{PORT}", certificates, ["/long.mp4"], "-rebind-every", "4000000")
    for _ in range(3):
        report = json.loads(network.inside("client", *command).splitlines()[-1])
        assert not report.get("error"), report
        assert report["responses"][0]["sha256"] == peers.sha256(LONG_CLIP)
        assert report["rebinds"] >= 3
    nodes = balancer.nodes(1).values()
    assert sum(node["packets_by_id"] for node in nodes) > 0.9 * sum(node["packets"] for node in nodes)


def test_sigkill_leaves_nothing(network: Network, make_balancer: Made) -> None:
    """Without `pin`, the program goes with the process, and the next start is as the first."""
    balancer = make_balancer(services(["n1"]))
    balancer.kill()
    wait_until(lambda: not balancer.left(), "the program stayed")
    make_balancer(services(["n1"]))
    assert Client(network).ask() == "n1"


@pytest.fixture
def bpffs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A BPF file system of the test's own."""
    folder = tmp_path / "bpffs"
    folder.mkdir()
    run(["mount", "-t", "bpf", "none", folder])
    monkeypatch.setenv("LIBXDP_BPFFS", str(folder))
    yield folder
    run(["umount", folder])


def test_pinned_it_goes_on_when_killed(bpffs: Path, network: Network, make_balancer: Made) -> None:
    """With `pin`, flows go on without a process, new ones too, and the next start takes over."""
    assert bpffs.is_dir()
    balancer = make_balancer("pin = true\n" + services(["n1", "n2"]))
    clients = [Client(network, socket.SOCK_DGRAM) for _ in range(20)]
    homes = [client.ask() for client in clients]
    balancer.kill()
    assert balancer.left()
    assert [client.ask() for client in clients] == homes
    assert Client(network).ask() in ("n1", "n2")
    make_balancer("pin = true\n" + services(["n1", "n2"]))
    assert [client.ask() for client in clients] == homes, "the ring is the same"


def test_a_foreign_program_is_refused(network: Network, make_balancer: Made, tmp_path: Path) -> None:
    """One line that names it; two balancers do not share an interface."""
    balancer = make_balancer(services(["n1"]))
    other = subprocess.run(
        ["ip", "netns", "exec", network.namespace("lb"), BINARY, "balance", "--config", balancer.config],
        capture_output=True, text=True, check=False)
    assert other.returncode == 1
    assert f"interface {INTERFACE}" in other.stderr
    assert Client(network).ask() == "n1"


def test_statistics_are_printed(network: Network, make_balancer: Made, tmp_path: Path) -> None:
    """As a table by SIGUSR1 and at the end; one JSON document with --json."""
    balancer = make_balancer(services(["n1"]))
    Client(network).ask()
    balancer.stop()
    assert balancer.process.stdout
    table = balancer.process.stdout.read()
    assert "tcp: " in table
    assert "10.77.0.21" in table
    assert "tx: new 1\n" in table
    second = Balancer(network, tmp_path / "json", services(["n1"]), "--json")
    assert json.loads(second.ready) == {"ready": {"interface": INTERFACE, "mode": "native"}}
    second.stop()
    assert second.process.stdout
    document = json.loads(second.process.stdout.read())
    assert document["services"][0]["nodes"][0]["address"] == "10.77.0.21"
