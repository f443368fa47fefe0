"""Which node `expressway balance` chooses: affinity, least connections; nodes that are drained, and nodes that vanish."""

import json
import socket
import time
from collections.abc import Callable

from harness.balance import INTERFACE, PORT, VIP, Balancer, Client, Network, services, wait_until
from harness.namespace import run_inside
from harness.paths import LIMIT
from test_balance_pin import Talk, go_on

Made = Callable[..., Balancer]
TCP, UDP = socket.SOCK_STREAM, socket.SOCK_DGRAM


class From(Client):
    """A connection or flow from an address of the client's."""

    def __init__(self, network: Network, source: str, kind: int) -> None:
        def make() -> socket.socket:
            made = socket.socket(socket.AF_INET, kind)
            made.settimeout(LIMIT)
            made.bind((source, 0))
            made.connect((VIP, PORT))
            return made

        self.socket = run_inside(network.namespace("client"), make)


def sources(network: Network, count: int) -> list[str]:
    """Addresses that the client gets."""
    made = [f"10.77.0.{100 + number}" for number in range(1, count + 1)]
    for source in made:
        network.ip("client", "address", "add", f"{source}/24", "dev", INTERFACE)
    return made


def with_keys(names: list[str], keys: str, **more: str) -> str:
    """The usual file, with keys for both services."""
    return services(names, **more).replace('listen = ["10', f'{keys}\nlisten = ["10')


def moved(balancer: Balancer, service: int) -> dict[str, int]:
    """Established flows that went to another node, by why."""
    return json.loads(balancer.admin("/services"))["services"][service]["flows_moved"]


def established(client: Client) -> str:
    """The node of a flow that has become established."""
    home = client.ask()
    assert [client.ask() for _ in range(4)] == [home] * 4
    return home


def test_all_flows_of_an_address_are_one_nodes(network: Network, make_balancer: Made) -> None:
    """With affinity: TCP and UDP, connection after connection, through a node that is drained, one that goes, and one that is new."""
    text = lambda names, **more: with_keys(names, 'affinity = "source"', **more)  # noqa: E731
    addresses = sources(network, 24)
    balancer = make_balancer(text(["n1", "n2"]))

    def homes() -> dict[str, str]:
        found = {}
        for source in addresses:
            clients = [From(network, source, kind) for kind in (TCP, UDP, TCP, UDP)]
            (found[source],) = {established(client) for client in clients}
            for client in clients:
                client.close()
        return found

    first = homes()
    assert set(first.values()) == {"n1", "n2"}
    assert homes() == first
    # A new node with nearly all of the weight, and one that is drained: addresses that are known stay, with new connections too.
    balancer.reload(text(["n1", "n2", "n3"], n1="drain = true", n3="weight = 100"))
    assert homes() == first
    assert moved(balancer, 0) == moved(balancer, 1) == {"node_down": 0, "node_gone": 0}
    stranger = f"10.77.0.{100 + len(addresses) + 1}"
    network.ip("client", "address", "add", f"{stranger}/24", "dev", INTERFACE)
    assert established(From(network, stranger, TCP)) != "n1", "an address that is new does not go to a node that is drained"
    balancer.reload(text(["n2", "n3"]))
    then = homes()
    assert "n1" not in then.values()
    assert all(then[source] == home for source, home in first.items() if home != "n1")
    assert moved(balancer, 1)["node_gone"] == list(first.values()).count("n1"), "once for each address"
    balancer.reload(text(["n1", "n2", "n3"]))
    assert homes() == then, "what has moved stays"


def test_new_flows_go_where_fewer_are(network: Network, make_balancer: Made) -> None:
    """With least-connections the node without flows gets three of four, until it has as many; with Maglev it gets half."""
    text = lambda names, scheduler: with_keys(names, f'scheduler = "{scheduler}"')  # noqa: E731
    balancer = make_balancer(text(["n1"], "least-connections"))

    def begin(count: int) -> list[Client]:
        clients = [Client(network, UDP) for _ in range(count)]
        found.append([established(client) for client in clients])
        return clients

    found: list[list[str]] = []
    n1 = network.address("n1")
    held = begin(400)
    wait_until(lambda: balancer.nodes(1)[n1]["flows"] == 400, "n1's flows are never counted")
    balancer.reload(text(["n1", "n2"], "least-connections"))
    held += begin(300)
    # Binomial with 3/4: 225, and a standard deviation of 7.5.
    assert found[1].count("n2") > 190, found[1].count("n2")
    # Both have about as many now: the next go to either.
    held += begin(100)
    assert {"n1", "n2"} == set(found[2])
    balancer.reload(text(["n1", "n2"], "maglev"))
    held += begin(300)
    # With 1/2: 150, and 8.7.
    assert found[3].count("n2") < 190, found[3].count("n2")
    assert {client.ask() for client in held[:400]} == {"n1"}, "what is established has not moved"
    for client in held:
        client.close()


def test_connections_that_end_make_room_at_their_node(network: Network, make_balancer: Made) -> None:
    """With least-connections: those that were closed are not counted any more."""
    text = with_keys(["n1", "n2"], 'scheduler = "least-connections"')
    balancer = make_balancer(text)
    n1, n2 = network.address("n1"), network.address("n2")
    clients, homes = [], []
    for _ in range(400):
        clients.append(Client(network))
        homes.append(established(clients[-1]))
    flows = lambda: [balancer.nodes(0)[node]["flows"] for node in (n1, n2)]  # noqa: E731
    wait_until(lambda: sum(flows()) == 400, "not all flows are counted")
    # Within what two choices leave between two nodes.
    assert abs(homes.count("n1") - 200) < 30, homes.count("n1")
    for client, home in zip(clients, homes, strict=True):
        if home == "n1":
            client.close()
    wait_until(lambda: flows()[0] == 0, "n1's connections are counted though they have ended")
    # The balancer counts every two seconds.
    time.sleep(5)
    newcomers = [Client(network) for _ in range(200)]
    # Binomial with 3/4: 150, and a standard deviation of 6; with the ends not seen it would be 100.
    assert sum(client.ask() == "n1" for client in newcomers) > 125
    for client, home in zip(clients, homes, strict=True):
        if home == "n2":
            assert client.ask() == "n2"


def test_a_node_is_drained_until_nobody_is_left_and_then_removed(network: Network, make_balancer: Made) -> None:
    """As an operator does it, while messages follow each other on every connection."""
    balancer = make_balancer(services(network.nodes))
    n1 = network.address("n1")
    talks = [Talk(network) for _ in range(24)]
    assert "n1" in {talk.home for talk in talks}
    go_on(talks)
    balancer.admin("/drain", {"service": "tcp", "node": n1, "drain": True})
    newcomers = [Talk(network) for _ in range(15)]
    assert "n1" not in {talk.home for talk in newcomers}
    go_on(talks + newcomers)
    assert balancer.nodes(0)[n1]["flows"] == sum(talk.home == "n1" for talk in talks)
    for talk in [talk for talk in talks if talk.home == "n1"]:
        talk.end()
        talks.remove(talk)
    wait_until(lambda: balancer.nodes(0)[n1]["flows"] == 0, "n1 is never free")
    balancer.reload(services(["n2", "n3"]))
    go_on(talks + newcomers)
    assert moved(balancer, 0) == {"node_down": 0, "node_gone": 0}
    for talk in talks + newcomers:
        talk.end()


def test_a_node_that_vanishes_without_a_word(network: Network, make_balancer: Made) -> None:
    """Its link is cut: nothing is refused or reset. Its flows go elsewhere, others never notice, and it comes back."""
    check = '[service.check]\nkind = "tcp"\ninterval = "50ms"\ntimeout = "300ms"\nfall = 2\n'
    balancer = make_balancer(services(network.nodes, check))
    n1 = network.address("n1")
    talks = [Talk(network) for _ in range(24)]
    lost = [talk for talk in talks if talk.home == "n1"]
    others = [talk for talk in talks if talk.home != "n1"]
    assert lost and others
    clients = [Client(network, UDP) for _ in range(30)]
    homes = [established(client) for client in clients]
    assert "n1" in homes
    go_on(talks)

    network.ip("switch", "link", "set", "to-n1", "down")
    for service in (0, 1):
        wait_until(lambda service=service: balancer.nodes(service)[n1]["state"] == "down", "n1 is never seen to be down")
    assert balancer.nodes(0)[n1]["problem"] == "no answer in time"
    now = [client.ask() for client in clients]
    assert "n1" not in now
    assert all(here == home for here, home in zip(now, homes, strict=True) if home != "n1")
    assert moved(balancer, 1) == {"node_down": homes.count("n1"), "node_gone": 0}
    go_on(others)
    # Another node knows nothing of these connections and resets them, rather than have clients wait.
    wait_until(lambda: all(talk.problem for talk in lost), "connections of a node that is gone hang")
    assert all("reset" in talk.problem for talk in lost), [talk.problem for talk in lost]
    assert all(Client(network).ask() != "n1" for _ in range(20))

    network.ip("switch", "link", "set", "to-n1", "up")
    for service in (0, 1):
        wait_until(lambda service=service: balancer.nodes(service)[n1]["state"] == "up", "n1 is never seen to be back")
    go_on(others)
    assert [client.ask() for client in clients] == now, "what has moved stays"
    wait_until(lambda: Client(network).ask() == "n1", "n1 never gets a new connection")
    for talk in others:
        talk.end()
