"""Changes of `expressway guard` and `expressway balance` under load: no flow that they don't concern loses a packet.

The router's are in test_forward.py.
"""

import secrets
import socket
from collections.abc import Callable
from pathlib import Path

from harness import links
from harness.balance import PORT, VIP, Balancer, Client, Network, services
from harness.guard import text
from harness.namespace import run_inside, udp_socket
from harness.stream import receiver, stream

CHANGES = 20
FEED_PORT = 7000
Made = Callable[..., Balancer]


def numbers(datagrams: list[tuple[bytes, str]], offset: int = 0) -> list[int]:
    """What they say."""
    return [int.from_bytes(payload[offset:offset + 4], "big") for payload, _ in datagrams]


def test_a_filter_changes_and_loses_nothing_of_a_flow_that_passes(make_lab, make_guard, tmp_path: Path) -> None:
    """Rules and lists that grow and shrink, and reloads of what is as it was. Another source is blocked every other time."""
    lab = make_lab()
    other = lab.client["ipv4"].rsplit(".", 1)[0] + ".77"
    links.ip(lab, "client", f"address add {other}/24 dev {links.CLIENT}")
    listed = tmp_path / "guard" / "list"
    listed.parent.mkdir()

    def block(number: int) -> None:
        entries = [f"203.0.113.{entry}" for entry in range(number)] + [other] * (number % 2)
        new = listed.with_suffix(".new")
        new.write_text("\n".join(entries) + "\n")
        new.rename(listed)

    def rules(count: int) -> str:
        """The flow's own rule, whose bucket goes on, behind others."""
        names = [f'[[rule]]\nname = "{port}"\ndestination_port = {port}\naction = "drop"\n' for port in range(1, 1 + count)]
        flow = f'[[rule]]\nname = "feed"\ndestination_port = {FEED_PORT}\nlimit = "1M/s"\nper = "source"\n'
        return text('block_file = "list"\n') + "".join(names) + flow

    block(0)
    guard = make_guard(lab, rules(1))
    assert guard.ready.startswith("ready"), guard.log()
    bound = receiver(lambda make: run_inside(lab.server_namespace, make), lab.server["ipv4"], FEED_PORT)

    def sender(source: str) -> socket.socket:
        made = udp_socket(lab.client_namespace, socket.AF_INET)
        made.bind((source, 0))
        return made

    flow, blocked = sender(lab.client["ipv4"]), sender(other)
    to = (lab.server["ipv4"], FEED_PORT)

    def send(number: int) -> None:
        flow.sendto(number.to_bytes(4, "big") + bytes(200), to)
        if number % 10 == 0:
            blocked.sendto(number.to_bytes(4, "big"), to)

    def change() -> None:
        for number in range(CHANGES):
            if number % 3 != 2:
                block(number)
            # Every fifth is SIGHUP with nothing that is new.
            guard.reload(rules(number % 7 + 1) if number % 5 else guard.file.read_text(), "configuration reloaded")

    sent, (found,) = stream(send, [bound], change)
    whole = [one for one in found if one[1] == lab.client["ipv4"]]
    assert numbers(whole) == list(range(sent)), "each once, in order"
    seen = len(found) - len(whole)
    assert 0 < seen < sent // 10, f"{seen}: what is blocked was never in effect, or always"
    counted = {one["rule"]: one for one in guard.status()["rules"]}["feed"]
    assert counted["dropped_packets"] == 0, counted
    for one in (flow, blocked, bound):
        one.close()


class Nodes:
    """What nodes receive at the service's address, in place of servers."""

    def __init__(self, network: Network) -> None:
        self.names = network.nodes
        for server in network.servers:
            server.stop()
        inside = {name: lambda make, name=name: run_inside(network.namespace(name), make) for name in self.names}
        self.sockets = [receiver(inside[name], VIP, PORT) for name in self.names]

    def close(self) -> None:
        """Ends it."""
        for one in self.sockets:
            one.close()


def test_nodes_change_and_no_established_flow_loses_a_packet(network: Network, make_balancer: Made) -> None:
    """Nodes that are added, weighted, drained, returned and removed, none of which had one of the flows."""
    balancer = make_balancer(services(["n1", "n2"]))
    nodes = Nodes(network)
    flows = [Client(network, socket.SOCK_DGRAM) for _ in range(16)]

    def send(number: int) -> None:
        flow = number % len(flows)
        flows[flow].socket.send(flow.to_bytes(1, "big") + (number // len(flows)).to_bytes(4, "big") + bytes(100))

    # Established by their third packet.
    stream(send, nodes.sockets, lambda: None, 5 * len(flows))

    def change() -> None:
        n1 = {"service": "udp", "node": network.address("n1")}
        for _ in range(CHANGES // 5):
            balancer.reload(services(["n1", "n2", "n3"]))
            balancer.reload(services(["n1", "n2", "n3"], n1="weight = 1", n3="weight = 100"))
            balancer.reload(services(["n1", "n2", "n3"], n1="drain = true"))
            balancer.admin("/drain", {**n1, "drain": True})
            balancer.admin("/drain", {**n1, "drain": False})
            balancer.reload(services(["n2", "n1"], n2="weight = 7"))

    sent, found = stream(send, nodes.sockets, change)
    assert sent > 16 * 5
    homes = set()
    for flow in range(len(flows)):
        of_flow = [[one for one in datagrams if one[0][0] == flow] for datagrams in found]
        (home,) = [node for node, datagrams in enumerate(of_flow) if datagrams]
        homes.add(nodes.names[home])
        expected = len(range(flow, sent, len(flows)))
        assert numbers(of_flow[home], 1) == list(range(expected)), f"flow {flow}: each once, in order, at one node"
    assert homes == {"n1", "n2"}
    moved = balancer.nodes(1).values()
    assert all(node["flows_moved"] == {"node_down": 0, "node_gone": 0} for node in moved)
    for flow in flows:
        flow.close()
    nodes.close()


# Appendix B.2 of draft-ietf-quic-load-balancers-21: a server ID of 8 bytes and a nonce as long, as one block.
KEY, SERVER_ID, ENCRYPTED = "8f95f09245765f80256934e50c66207f", "ed793a51d49b8f5f", "4dd2d05a7b0de9b2b9907afb5ecf8cc3"


def test_keys_of_connection_ids_change_and_no_packet_misses_its_node(
    network: Network, make_balancer: Made, tmp_path: Path
) -> None:
    """IDs of one key, from ever other ports, while keys of other codepoints come, change and go. A packet whose ID could not be
    read for a moment would be hashed to another node in two cases of three."""

    def write(codepoint: int, key: str) -> None:
        file = tmp_path / f"{codepoint}.key"
        file.write_text(key + "\n")
        file.chmod(0o600)

    ids = {name: f'server_id = "{SERVER_ID[:-2]}{0x5f + number:02x}"\n' for number, name in enumerate(network.nodes)}

    def config(*codepoints: int) -> str:
        tables = "".join(
            f'[[service.quic_lb]]\nconfig = {one}\nkey_file = "{tmp_path}/{one}.key"\nnonce = 8\n' for one in codepoints)
        head, udp = services(network.nodes, **ids).split('name = "udp"\n')
        node = udp.index("[[service.node]]")
        return f'{head}name = "udp"\nroute = "quic-lb"\n{udp[:node]}{tables}{udp[node:]}'

    for codepoint in range(3):
        write(codepoint, KEY if codepoint == 0 else secrets.token_hex(16))
    balancer = make_balancer(config(0))
    nodes = Nodes(network)
    flows = [Client(network, socket.SOCK_DGRAM) for _ in range(64)]
    head = b"\x40\x10" + bytes.fromhex(ENCRYPTED)

    def send(number: int) -> None:
        flows[number % len(flows)].socket.send(head + number.to_bytes(4, "big") + bytes(100))

    def change() -> None:
        for number in range(CHANGES):
            write(1 + number % 2, secrets.token_hex(16))
            balancer.reload(config(*[(0, 1), (2, 0, 1), (2, 0), (0,)][number % 4]))

    sent, (first, *others) = stream(send, nodes.sockets, change)
    assert others == [[], []]
    assert sorted(numbers(first, len(head))) == list(range(sent)), "each once"
    node = balancer.nodes(1)[network.address("n1")]
    assert (node["packets"], node["packets_by_id"]) == (sent, sent)
    for flow in flows:
        flow.close()
    nodes.close()
