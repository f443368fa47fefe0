"""`expressway dump` beside tcpdump: of one transfer both show the same datagrams, each flow's in the same order, on an interface, a
VLAN and a bond."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

import pytest
from harness import clients, kernel, links
from harness.captures import Dump, dumps, written
from harness.lab import Lab
from harness.paths import CLIP, PORT
from harness.server import address
from harness.sniffer import Sniffer, datagram, datagrams
from harness.stacked import OnVlan, bonded, on_vlan
from harness.top import packets, rows, tops

UDP = f"udp port {PORT}"
VLAN = 100

__all__ = ["bonded", "on_vlan"]

Flows = dict[tuple, list[tuple[int, str]]]


def by_flow(found: list) -> Flows:
    """Of each flow, length and hash of what its datagrams carry, in their order."""
    flows: Flows = defaultdict(list)
    for one in found:
        flows[one.source, one.destination].append((len(one.payload), sha256(one.payload).hexdigest()))
    return dict(flows)


def sorted_flows(flows: Flows) -> Flows:
    """The same without the order: between two ends of a link a sender that changes its core may overtake itself."""
    return {flow: sorted(found) for flow, found in flows.items()}


@pytest.fixture
def make_dump(tmp_path: Path) -> Iterator[Callable[..., Dump]]:
    """Starts captures."""
    with dumps(tmp_path) as start:
        yield start


class Beside:
    """A transfer from the server to the client, captured by `expressway dump` where the server is and by tcpdump at both ends."""

    def __init__(
        self, lab: Lab, make_dump: Callable[..., Dump], folder: Path, interfaces: tuple[str, str], mode: str
    ) -> None:
        server, client = interfaces
        self.ours = folder / "ours.pcapng"
        self.dump = make_dump(lab, "server", "-i", server, "-w", self.ours, UDP)
        if mode != "udp" and self.dump.is_refused():
            kernel.lacks("this kernel refuses programs at entry and exit of others")
        self.there = Sniffer(lab, "client", client, folder / "there.pcap", UDP)
        self.here = Sniffer(lab, "server", server, folder / "here.pcap", UDP)

    def end(self) -> None:
        """Ends all three."""
        self.captured = self.dump.end()
        for one in (self.there, self.here):
            one.end()
        self.seen = [(datagram(0.0, frame), comment) for frame, comment in written(self.ours)]
        self.flows = by_flow([one for one, _ in self.seen])

    def comments(self, source: str) -> list[str]:
        """What it says of packets from an address."""
        return [comment for one, comment in self.seen if one.source[0] == source]


def most_by_xsk(comments: list[str], process: int) -> bool:
    """Whether all packets were sent by AF_XDP sockets of a process, but those by which the kernel gets to know the neighbour and
    confirms it again. In a busy guest it is known late."""
    express = [comment for comment in comments if comment.startswith(f"xsk copy, pid {process} ")]
    others = {comment for comment in comments if "xsk" not in comment}
    # Whose socket it was is looked for when the first has come.
    return len(express) > 0.5 * len(comments) and all(not one or one.startswith(f"pid {process} ") for one in others)


def segmentation_off(lab: Lab, *devices: tuple[str, str]) -> None:
    """Has no device cut segments or merge them: they would be whole on one side and cut on the other."""
    for role, name in devices:
        lab.run(role, "ethtool", "-K", name, "tx-udp-segmentation", "off", "rx-gro-list", "off")


def fetch(lab: Lab, host: str, certificates: Path) -> None:
    """The client fetches a clip."""
    (answer,) = clients.fetch(lab, clients.CLIENT_NAMES[0], address(host), certificates, ["/clip.mp4"])
    assert answer.sha256 == clients.sha256(CLIP)


@pytest.mark.parametrize("mode", ["udp", "copy"])
def test_of_an_interface(make_lab, make_server, make_dump, certificates: Path, tmp_path: Path, mode: str) -> None:
    lab = make_lab()
    segmentation_off(lab, ("server", links.SERVER), ("client", links.CLIENT))
    server = make_server(lab, mode=mode)
    beside = Beside(lab, make_dump, tmp_path, (links.SERVER, links.CLIENT), mode)
    fetch(lab, lab.server["ipv4"], certificates)
    beside.end()
    there = by_flow(datagrams(beside.there.file))
    assert sorted_flows(beside.flows) == sorted_flows(there), "what passed the other end"
    assert beside.captured == len(beside.seen) > CLIP.stat().st_size // 1500
    here = by_flow(datagrams(beside.here.file))
    own = lab.server["ipv4"]
    if mode == "udp":
        assert beside.flows == here, "both at once on the kernel's path"
    else:
        assert len(here) < len(beside.flows) or sum(map(len, here.values())) < beside.captured // 10, "AF_XDP passes it by"
        sent = beside.comments(own)
        assert most_by_xsk(sent, server.process.pid), sent[:3]


@pytest.mark.parametrize("mode", ["udp", "copy"])
@pytest.mark.parametrize("on_vlan", [([VLAN], False), ([200, VLAN], False)], indirect=True, ids=["one-tag", "two-tags"])
def test_of_a_vlan(on_vlan: OnVlan, make_server, make_dump, certificates: Path, tmp_path: Path, mode: str) -> None:
    lab = on_vlan.lab
    segmentation_off(lab, ("server", links.SERVER), ("client", links.CLIENT))
    host = on_vlan.hosts[0]
    server = make_server(lab, mode=mode, listen=[address(host)])
    ours, theirs = f"server{on_vlan.name}", f"client{on_vlan.name}"
    # The neighbour is known then: before, the kernel sends.
    lab.run("client", "ping", "-c1", host)
    beside = Beside(lab, make_dump, tmp_path, (ours, theirs), mode)
    # What the device has that belongs to no VLAN, or to another, is not the VLAN's.
    lab.run("client", "ping", "-c2", lab.server["ipv4"])
    with tops(tmp_path) as make_top:
        top = make_top(lab, ours)
        fetch(lab, host, certificates)
        beside.end()
        flow = {"protocol": "udp", "local_port": PORT}
        counted = top.wait_for(lambda one: sum(map(both, rows(one, **flow))) >= beside.captured, "all of them")
        assert sum(map(both, rows(counted, **flow))) == beside.captured
        assert not [row for row in rows(counted) if (row["remote"] or {}).get("ip") == lab.client["ipv4"]]
    assert sorted_flows(beside.flows) == sorted_flows(by_flow(datagrams(beside.there.file))), "without tags, as the other end's VLAN has them"
    assert beside.captured == len(beside.seen) > CLIP.stat().st_size // 1500
    # On the VLAN itself tcpdump has what is sent before it is segmented, so only the other end's is compared.
    if mode == "copy":
        assert most_by_xsk(beside.comments(host), server.process.pid)
        assert any("pid" in comment for comment in beside.comments(on_vlan.lab.client["vlan_ipv4"]))


def both(row: dict) -> int:
    """The packets of a row, both ways."""
    return packets(row["received"]) + packets(row["sent"])


@pytest.mark.parametrize("mode", ["udp", "hybrid"])
def test_of_a_bond(bonded: Lab, make_server, make_dump, certificates: Path, tmp_path: Path, mode: str) -> None:
    devices = [(role, f"{role}{number}") for role in ("server", "client") for number in (0, 1)]
    segmentation_off(bonded, *devices)
    make_server(bonded, mode=mode)
    beside = Beside(bonded, make_dump, tmp_path, ("bond0", "bond0"), mode)
    member = make_dump(bonded, "server", "-i", "server0", "-w", tmp_path / "member.pcapng", UDP)
    with tops(tmp_path) as make_top:
        top = make_top(bonded, "bond0")
        fetch(bonded, bonded.server["ipv4"], certificates)
        beside.end()
        flow = {"protocol": "udp", "local_port": PORT}
        counted = top.wait_for(lambda one: sum(map(both, rows(one, **flow))) >= beside.captured, "all of them")
        assert sum(map(both, rows(counted, **flow))) == beside.captured
    assert sorted_flows(beside.flows) == sorted_flows(by_flow(datagrams(beside.there.file)))
    assert beside.captured == len(beside.seen) == member.end() > CLIP.stat().st_size // 1500
    if mode == "udp":
        assert beside.flows == by_flow(datagrams(beside.here.file))


def test_a_packet_is_shown_once_as_the_topmost_interfaces(bonded: Lab, make_dump) -> None:
    dump = make_dump(bonded, "server", "-i", "any", "icmp")
    bonded.run("client", "ping", "-c2", bonded.server["ipv4"])
    assert dump.end() == 4
    assert {line.split()[1] for line in dump.lines()} == {"bond0"}, dump.lines()


@pytest.mark.parametrize("on_vlan", [([VLAN], False)], indirect=True, ids=["one-tag"])
def test_a_filter_sees_what_the_interface_has(on_vlan: OnVlan, make_dump) -> None:
    lab = on_vlan.lab
    vlan = make_dump(lab, "server", "-i", f"server{on_vlan.name}", "-e", "icmp[icmptype] = icmp-echo")
    device = make_dump(lab, "server", "-i", links.SERVER, "-e", "vlan 100 and icmp[icmptype] = icmp-echo")
    lab.run("client", "ping", "-c2", on_vlan.hosts[0])
    assert vlan.end() == device.end() == 2
    assert not any("vlan 100" in line for line in vlan.lines())
    assert all("vlan 100" in line for line in device.lines())


def test_who_asks_for_a_vlan_of_another_namespace_is_told(make_lab, make_dump) -> None:
    lab = make_lab()
    try:
        links.ip(lab, "server", f"link add link {links.SERVER} name apart0 netns {lab.client_namespace} type vlan id 9")
    except AssertionError as error:
        if "Unknown device type" not in str(error):
            raise
        kernel.lacks("this kernel has no VLAN interfaces (CONFIG_VLAN_8021Q)")
    links.ip(lab, "client", "link set apart0 up")
    dump = make_dump(lab, "client", "-i", "apart0", "icmp")
    assert "apart0: packets it receives are not captured: the device below is in another network namespace" in dump.log()
