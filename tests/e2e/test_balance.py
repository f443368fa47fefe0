"""`expressway balance` between real clients and real nodes, which answer directly."""

import json
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

from harness.balance import INTERFACE, PORT, VIP, VIP6, Balancer, Client, Network, services, wait_until
from harness.namespace import run_inside
from harness.paths import BINARY

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
        nodes = balancer.nodes(service).values()
        assert sum(node["flows_begun"] for node in nodes) == 80
        whole = json.loads(balancer.admin("/services"))["services"][service]
        for key in ("packets", "bytes", "flows_begun", "flows_established", "flows"):
            assert whole[key] == sum(node[key] for node in nodes), key
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
        assert f"`{line.split()[0]}` has changed: restart to apply it" in balancer.log()
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
    for _ in range(4):
        assert [client.ask() for client in clients] == homes
    network.servers[0].stop()
    n1 = network.address("n1")
    for service in (0, 1):
        wait_until(lambda service=service: balancer.nodes(service)[n1]["state"] == "down", "n1 is never seen to be down")
    assert balancer.nodes()[n1]["problem"]
    now = [client.ask() for client in clients]
    assert "n1" not in now
    assert all(here == home for here, home in zip(now, homes, strict=True) if home != "n1")
    moved = json.loads(balancer.admin("/services"))["services"][1]["flows_moved"]
    assert moved == {"node_down": homes.count("n1"), "node_gone": 0}
    assert f'balance_node_flows_moved_total{{service="udp",node="{network.address("n2")}",reason="node_down"}}' in balancer.admin("/metrics")
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
    udp = json.loads(balancer.admin("/services"))["services"][1]
    assert udp["dropped_by_reason"]["no_node"] == udp["dropped"] > 0
    assert 'drops_total{layer="xdp",reason="no-node"}' in balancer.admin("/metrics")
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


def test_weights_are_changed_by_order(network: Network, make_balancer: Made) -> None:
    """Without a reload, which brings back the file's."""
    balancer = make_balancer(services(["n1", "n2"]))
    n1, n2 = network.address("n1"), network.address("n2")
    answer = json.loads(balancer.admin("/weight", {"service": "tcp", "node": n1, "weight": 0}))
    assert answer == {"node": n1, "weight": 0}
    assert {Client(network).ask() for _ in range(20)} == {"n2"}
    assert balancer.nodes(0)[n1]["ring"] == 0
    assert balancer.nodes(1)[n1]["ring"] > 0, "the other service's node"
    balancer.admin("/weight", {"service": "tcp", "node": n2, "weight": 3})
    balancer.admin("/weight", {"service": "tcp", "node": n1, "weight": 1})
    ring = {address: node["ring"] for address, node in balancer.nodes(0).items()}
    assert abs(ring[n2] - 3 * ring[n1]) < 10
    assert "must be 1000 or less" in balancer.admin("/weight", {"service": "tcp", "node": n1, "weight": 1001})
    assert "no node 10.77.0.99" in balancer.admin("/weight", {"service": "tcp", "node": "10.77.0.99", "weight": 1})
    balancer.reload(services(["n1", "n2"]))
    assert {node["weight"] for node in balancer.nodes(0).values()} == {1}


def test_a_node_that_is_added_gets_its_weight_by_and_by(network: Network, make_balancer: Made) -> None:
    """With `slow_start`; those that are there from the start have theirs at once."""
    text = lambda names: services(names).replace('protocol = "tcp"\n', 'protocol = "tcp"\nslow_start = "2s"\n')  # noqa: E731
    balancer = make_balancer(text(["n1", "n2"]))
    n3 = network.address("n3")
    assert {node["ring"] > 30_000 for node in balancer.nodes(0).values()} == {True}
    balancer.reload(text(["n1", "n2", "n3"]))
    part = lambda: balancer.nodes(0)[n3]["ring"]  # noqa: E731
    seen = [part()]
    wait_until(lambda: seen.append(part()) or seen[-1] > 21_000, "n3 never gets a third")
    assert seen == sorted(seen)
    assert balancer.nodes(1)[n3]["ring"] > 21_000, "the other service's at once"


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
