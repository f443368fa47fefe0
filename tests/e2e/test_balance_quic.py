"""`expressway balance` before HTTP/3 gateways: connection IDs, and checks by QUIC."""

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import clients as peers
from harness.balance import PORT, VIP, Balancer, Gateways, Network, services, wait_until
from harness.paths import LONG_CLIP

Made = Callable[..., Balancer]


@pytest.fixture
def gateways(network: Network, root: Path, certificates: Path, tmp_path: Path) -> Iterator[Gateways]:
    """Gateways in place of the servers, none of them started."""
    for server in network.servers:
        server.stop()
    made = Gateways(network, root, certificates, tmp_path)
    yield made
    made.stop()


def download_with_new_ports(network: Network, certificates: Path) -> None:
    """A whole file, by a client that changes its port again and again."""
    command = peers.command("quicgo", f"{VIP}:{PORT}", certificates, ["/long.mp4"], "-rebind-every", "4000000")
    report = json.loads(network.inside("client", *command).splitlines()[-1])
    assert not report.get("error"), report
    assert report["responses"][0]["sha256"] == peers.sha256(LONG_CLIP)
    assert report["rebinds"] >= 3


def led_by_id(balancer: Balancer) -> float:
    """The share of packets that their connection ID led to its node."""
    nodes = balancer.nodes(1).values()
    return sum(node["packets_by_id"] for node in nodes) / sum(node["packets"] for node in nodes)


def test_a_quic_client_whose_port_changes_stays_on_its_node(
    network: Network, gateways: Gateways, make_balancer: Made, certificates: Path
) -> None:
    """Over and over, in mid transfer: each new port would be hashed to another node in two cases of three."""
    names = gateways.start(network.nodes)
    balancer = make_balancer(services(names).replace('name = "udp"\n', 'name = "udp"\nroute = "quic-lb"\n'))
    for _ in range(3):
        download_with_new_ports(network, certificates)
    assert led_by_id(balancer) > 0.9


def test_encrypted_connection_ids_lead_to_their_node_while_keys_change(
    network: Network, gateways: Gateways, make_balancer: Made, certificates: Path, tmp_path: Path
) -> None:
    """The server ID is in no packet in clear; the next key is known to the balancer before nodes issue by it."""
    for number, key in enumerate(("8f95f09245765f80256934e50c66207f", "fdf726a9893ec05c0632d3956680baf0")):
        file = tmp_path / f"{number}.key"
        file.write_text(key + "\n")
        file.chmod(0o600)

    def text(*configs: int) -> str:
        tables = "".join(f'[[service.quic_lb]]\nconfig = {one}\nkey_file = "{tmp_path}/{one}.key"\n' for one in configs)
        head, udp = services(network.nodes).split('name = "udp"\n')
        node = udp.index("[[service.node]]")
        return f'{head}name = "udp"\nroute = "quic-lb"\n{udp[:node]}{tables}{udp[node:]}'

    names = gateways.start(network.nodes, f'config = 0\nkey_file = "{tmp_path}/0.key"\n')
    balancer = make_balancer(text(0))
    download_with_new_ports(network, certificates)
    assert led_by_id(balancer) > 0.9
    balancer.reload(text(0, 1))
    for name, process in zip(names, gateways.running, strict=True):
        gateways.write(name, f'config = 1\nkey_file = "{tmp_path}/1.key"\n')
        process.send_signal(signal.SIGHUP)
        wait_until(lambda name=name: "reload: done" in (tmp_path / f"{name}.log").read_text(), f"{name} never reloads")
    balancer.reload(text(1))
    before = {address: node["packets_by_id"] for address, node in balancer.nodes(1).items()}
    download_with_new_ports(network, certificates)
    after = {address: node["packets_by_id"] for address, node in balancer.nodes(1).items()}
    assert sum(after.values()) > sum(before.values()), "IDs of the new key are read"
    assert led_by_id(balancer) > 0.9
    (tmp_path / "1.key").chmod(0o644)
    balancer.signal(signal.SIGHUP)
    balancer.wait_log("not reloaded")
    assert "1.key: can be accessed by others than its owner (mode 644): run chmod 600 on it" in balancer.log()


def test_nodes_are_asked_by_quic_and_http3(network: Network, gateways: Gateways, make_balancer: Made) -> None:
    """A real handshake and a request; a node whose answer is another is down, and says which."""
    gateways.start(["n1", "n2"])

    def text(check: str) -> str:
        shared = 'interval = "100ms"\ntimeout = "10s"\nfall = 1\nrise = 1\nhost = "edge.test"\n'
        head, udp = services(network.nodes).split('name = "udp"\n')
        node = udp.index("[[service.node]]")
        return f'{head}name = "udp"\n{udp[:node]}[service.check]\n{check}{shared}{udp[node:]}'

    def states() -> dict[str, str]:
        return {address: node["state"] for address, node in balancer.nodes(1).items() if node["checks"][0] > 1}

    def problem() -> str | None:
        return balancer.nodes(1)[n1]["problem"]

    n1, n2, n3 = (network.address(name) for name in network.nodes)
    balancer = make_balancer(text('kind = "quic-handshake"\n'))
    wait_until(lambda: states() == {n1: "up", n2: "up", n3: "down"}, "the handshake's states are never right")
    balancer.reload(text('kind = "http3"\npath = "/small.txt"\nbody = "A small"\n'))
    wait_until(lambda: states() == {n1: "up", n2: "up", n3: "down"}, "the request's states are never right")
    balancer.reload(text('kind = "http3"\npath = "/small.txt"\nbody = "goodbye"\n'))
    wait_until(lambda: set(states().values()) == {"down"}, "another body is taken for the right one")
    wait_until(lambda: "a body that begins with `A small" in str(problem()), "why is never said")
    balancer.reload(text('kind = "http3"\npath = "/absent"\nstatus = [404]\n'))
    wait_until(lambda: states() == {n1: "up", n2: "up", n3: "down"}, "a listed status is never taken")
    balancer.reload(text('kind = "http3"\npath = "/absent"\n'))
    wait_until(lambda: set(states().values()) == {"down"}, "404 is taken for good")
    wait_until(lambda: problem() == "answered status 404", "why is never said")
    balancer.reload(text('kind = "quic-handshake"\nalpn = ["other"]\n'))
    wait_until(lambda: "closed the connection" in str(problem()), "another protocol is taken for good")
