"""Clients behind VLAN tags."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import clients
from harness.lab import Lab
from harness.paths import CLIENTS, CLIP, LIMIT
from harness.server import address
from harness.stacked import OnVlan, on_vlan

__all__ = ["on_vlan"]


@pytest.mark.parametrize("mode", ["udp", "copy", "hybrid", "generic"])
@pytest.mark.parametrize(
    "on_vlan",
    [([100], False), ([100], True), ([200, 100], False)],
    indirect=True,
    ids=["one-tag", "one-tag-stripped", "two-tags"],
)
def test_on_a_vlan_interface(on_vlan: OnVlan, make_server, certificates: Path, mode: str) -> None:
    size, lab = CLIP.stat().st_size, on_vlan.lab
    server = make_server(lab, mode=mode, listen=[address(host) for host in on_vlan.hosts])
    assert server.obtained() == mode
    for host in on_vlan.hosts:
        for client in clients.CLIENT_NAMES:
            sent, received = on_vlan.bytes("server", "tx"), on_vlan.bytes("client", "rx")
            before = server.metrics()
            (answer,) = clients.fetch(lab, client, address(host), certificates, ["/clip.mp4"])
            assert answer.sha256 == clients.sha256(CLIP)
            # The client's kernel would take the addresses from the device below too: this is the tag.
            assert on_vlan.bytes("client", "rx") - received > size, "all of it came by the VLAN"
            if mode != "udp":
                name = "rx_xsk_packets_total"
                server.wait_for("packets by AF_XDP", lambda m, b=before.sum(name): m.sum(name) > b)
            if mode in ("copy", "generic"):
                name = "tx_xsk_packets_total"
                server.wait_for("packets sent by AF_XDP", lambda m, b=before.sum(name): m.sum(name) > b + size // 1500)
                assert on_vlan.bytes("server", "tx") - sent < size // 10, "the kernel did not send it"


class TaggedClient:
    """A lab whose client sends with VLAN tags though its kernel has no VLAN interfaces: its address is on a
    tap, and a relay tags what leaves. The server's kernel understands no tags either, so what reaches the
    server came by AF_XDP. It answers without tags, by its route. Neighbours are static, as ARP would be
    tagged too."""

    def __init__(self, lab: Lab, tags: list[int]) -> None:
        self.lab = lab
        macs = {role: self._mac(role) for role in ("server", "client")}
        given = [word for tag in tags for word in ("--tag", str(tag))]
        relay: list[str | Path] = [CLIENTS / "vlan_relay.py", "--tap", "tap0", "--interface", "client0", *given]
        command = lab.inside("client", "python3", *relay)
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout and self.process.stdout.readline() == "ready\n"
        server, client = lab.server["ipv4"], lab.client["ipv4"]
        for line in (
            # What comes in by client0 is for the relay alone.
            "sysctl -qw net.ipv4.conf.client0.rp_filter=1",
            "ip addr flush dev client0",
            f"ip link set tap0 address {macs['client']} mtu 1492 up",
            f"ip addr add {client}/24 dev tap0",
            f"ip neigh replace {server} lladdr {macs['server']} dev tap0 nud permanent",
        ):
            lab.run("client", *line.split())
        neighbour = f"ip neigh replace {client} lladdr {macs['client']} dev server0 nud permanent"
        lab.run("server", *neighbour.split())

    def _mac(self, role: str) -> str:
        (link,) = json.loads(self.lab.run(role, "ip", "-j", "link", "show", f"{role}0"))
        return link["address"]

    def close(self) -> None:
        """Ends the relay; the tap goes with it."""
        self.process.kill()
        self.process.wait(LIMIT)


@pytest.fixture
def tagged_client(make_lab, request: pytest.FixtureRequest) -> Iterator[TaggedClient]:
    """One, with the tags that the test names."""
    client = TaggedClient(make_lab(), request.param)
    yield client
    client.close()


@pytest.mark.parametrize("mode", ["copy", "generic"])
@pytest.mark.parametrize("tagged_client", [[100], [200, 100]], indirect=True, ids=["one-tag", "two-tags"])
def test_tagged_frames_take_the_express_path(
    tagged_client: TaggedClient, make_server, certificates: Path, mode: str
) -> None:
    lab = tagged_client.lab
    server = make_server(lab, mode=mode)
    connect = address(lab.server["ipv4"])
    for client in clients.CLIENT_NAMES:
        (answer,) = clients.fetch(lab, client, connect, certificates, ["/clip.mp4"])
        assert answer.sha256 == clients.sha256(CLIP)
    metrics = server.wait_for("packets by AF_XDP", lambda m: m.sum("rx_xsk_packets_total") > 0)
    assert metrics.sum("rx_kernel_packets_total") == 0
