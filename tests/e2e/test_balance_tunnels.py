"""`expressway balance` to nodes behind tunnels, which a process opens."""

import hashlib
import json
import socket
import threading
from collections.abc import Callable, Iterator

import pytest
from harness.balance import ADMIN, INTERFACE, PORT, VIP, VIP6, Balancer, Client, Network, wait_until
from harness.namespace import run_inside
from harness.paths import LIMIT
from harness.tunnels import INNER_IPV4, INNER_IPV6, Outer, ProcessEnd, address_of, balancers_address

Made = Callable[..., Balancer]
UPLOAD, CHECKED = PORT + 1, PORT + 2
KINDS = [(kind, to) for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM) for to in (VIP, VIP6)]
METHODS = pytest.mark.parametrize("method", ["ipip", "gue"])
OUTERS = pytest.mark.parametrize("outer", [4, 6], ids=["over-ipv4", "over-ipv6"])


@pytest.fixture
def ends(network: Network) -> Iterator[dict[str, ProcessEnd]]:
    """Where tunnels end on each node."""
    made = {name: ProcessEnd(network, name) for name in network.nodes}
    listeners = [run_inside(network.namespace(name), listen) for name in network.nodes]
    yield made
    for listener in listeners:
        listener.close()
    for end in made.values():
        end.close()


def listen() -> socket.socket:
    """Takes connections at the node's own addresses: the kernel answers for as long as its queue has room."""
    return socket.create_server(("::", CHECKED), family=socket.AF_INET6, dualstack_ipv6=True, backlog=4096)


def text(network: Network, method: str, outer: int, names: list[str]) -> str:
    """A file with a service for TCP, one for UDP, and one that is sent much."""
    lines = ADMIN
    for name, protocol, port in (("tcp", "tcp", PORT), ("udp", "udp", PORT), ("upload", "tcp", UPLOAD)):
        lines += f'[[service]]\nname = "{name}"\nprotocol = "{protocol}"\nlisten = ["{VIP}:{port}", "[{VIP6}]:{port}"]\n'
        lines += f'[service.check]\nkind = "tcp"\nport = {CHECKED}\ninterval = "300ms"\ntimeout = "20s"\nfall = 3\n'
        for node in names:
            lines += f'[[service.node]]\naddress = "{address_of(network, node, outer)}"\nmethod = "{method}"\n'
    return lines


class Digests:
    """Servers on a node that answer a whole upload with its hash."""

    def __init__(self, network: Network, name: str) -> None:
        def make() -> list[socket.socket]:
            families = ((socket.AF_INET, VIP), (socket.AF_INET6, VIP6))
            return [socket.create_server((vip, UPLOAD), family=family) for family, vip in families]

        self.sockets = run_inside(network.namespace(name), make)
        for made in self.sockets:
            threading.Thread(target=self._accept, args=(made,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                digest = hashlib.sha256()
                while part := connection.recv(1 << 16):
                    digest.update(part)
                connection.sendall(digest.digest())

    def stop(self) -> None:
        """Ends it."""
        for made in self.sockets:
            made.shutdown(socket.SHUT_RDWR)
            made.close()


def upload(network: Network, to: str, content: bytes) -> bytes:
    """The hash that the service has of what it got."""

    def connect() -> socket.socket:
        return socket.create_connection((to, UPLOAD), timeout=LIMIT)

    with run_inside(network.namespace("client"), connect) as connection:
        connection.sendall(content)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(100), b""))


@METHODS
@OUTERS
def test_flows_reach_their_nodes_by_tunnels(network: Network, make_balancer: Made, ends: dict[str, ProcessEnd], method: str, outer: int) -> None:
    """TCP and UDP over IPv4 and IPv6 in the same tunnels; each flow keeps its node, and clients learn what fits."""
    balancer = make_balancer(text(network, method, outer, network.nodes))
    for kind, to in KINDS:
        clients = [Client(network, kind, to) for _ in range(40)]
        first = [client.ask() for client in clients]
        assert set(first) == set(network.nodes)
        assert [client.ask() for client in clients] == first
        for client in clients:
            client.close()
    for service in (0, 1):
        for name in network.nodes:
            node = balancer.nodes(service)[address_of(network, name, outer)]
            assert node["method"] == method
            assert node["packets"] > 0
    assert all(end.packets() > 0 for end in ends.values()), "they came by tunnels"

    content = bytes(range(256)) * 4096
    digests = [Digests(network, name) for name in network.nodes]
    for to in (VIP, VIP6):
        assert upload(network, to, content) == hashlib.sha256(content).digest()
    told = json.loads(balancer.admin("/services"))["services"][2]
    assert told["answered_too_big"] > 0, "a full packet has no room for an outer header"
    assert set(told["dropped_by_reason"].values()) == {0}, told
    for name in network.nodes:
        asked = lambda name=name: balancer.nodes(0)[address_of(network, name, outer)]["checks"]  # noqa: E731
        wait_until(lambda asked=asked: asked()[0] >= 2, f"{name} is never asked")
        assert asked()[1] == 0, balancer.log()
    for server in digests:
        server.stop()
    check_outer(network, ends, method, outer)


def check_outer(network: Network, ends: dict[str, ProcessEnd], method: str, outer: int) -> None:
    """What a process sees of outer headers."""
    seen: set[Outer] = set()
    for end in ends.values():
        seen |= end.seen
    assert {one.source for one in seen} == {balancers_address(network, outer)}
    assert {(one.method, one.inner) for one in seen} == {(method, INNER_IPV4), (method, INNER_IPV6)}
    if method == "gue":
        ports = {one.port for one in seen}
        assert all(port >= 0xC000 for port in ports), ports
        assert len(ports) > 20, "a port for each flow, by which networks spread them"


@METHODS
def test_a_node_behind_a_tunnel_that_goes_and_comes_back(network: Network, make_balancer: Made, ends: dict[str, ProcessEnd], method: str) -> None:
    """Drained it keeps its flows; removed it has none; others never notice."""
    balancer = make_balancer(text(network, method, 4, network.nodes))
    clients = [Client(network, kind) for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM) for _ in range(20)]
    homes = [client.ask() for client in clients]
    for _ in range(4):
        assert [client.ask() for client in clients] == homes
    for service in ("tcp", "udp"):
        balancer.admin("/drain", {"service": service, "node": network.address("n1"), "drain": True})
    assert [client.ask() for client in clients] == homes
    assert all(Client(network, kind).ask() != "n1" for kind, _ in KINDS for _ in range(10))
    balancer.reload(text(network, method, 4, ["n2", "n3"]))
    before = ends["n1"].packets()
    udp = clients[20:]
    now = [client.ask() for client in udp]
    assert "n1" not in now
    assert all(here == home for here, home in zip(now, homes[20:], strict=True) if home != "n1")
    assert ends["n1"].packets() == before
    balancer.reload(text(network, method, 4, network.nodes))
    assert [client.ask() for client in udp] == now, "what has moved stays"
    wait_until(lambda: Client(network).ask() == "n1", "n1 never gets a new connection")


def test_a_tunnel_without_an_address_that_is_no_services(network: Network, make_balancer: Made, ends: dict[str, ProcessEnd]) -> None:
    """Nodes take nothing that comes from an address of their own: nothing is sent, and why is said until there is an address."""
    node, own = address_of(network, "n1", 6), f"{balancers_address(network, 6)}/64"
    # What the address brings would go with it.
    network.ip("lb", "-6", "route", "add", "fd77::/64", "dev", INTERFACE, "metric", "10")
    balancer = make_balancer(text(network, "ipip", 6, ["n1"]))
    assert Client(network, socket.SOCK_DGRAM).ask() == "n1"
    network.ip("lb", "address", "del", own, "dev", INTERFACE)
    wait_until(lambda: "no address of this host" in (balancer.nodes(0)[node]["problem"] or ""), "nothing is wrong")
    # The slower of its two voices: checks are given their source once per second.
    wait_until(lambda: balancer.nodes(0)[node]["state"] == "down", "checks come from a service's address")
    network.ip("lb", "address", "add", own, "dev", INTERFACE, "nodad")
    wait_until(lambda: balancer.nodes(0)[node]["problem"] is None, "it stays wrong")
    wait_until(lambda: balancer.nodes(0)[node]["state"] == "up", "it stays down")
    assert Client(network, socket.SOCK_DGRAM).ask() == "n1"
    assert {one.source for one in ends["n1"].seen} == {balancers_address(network, 6)}
