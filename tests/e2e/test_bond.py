"""A service on a bond: AF_XDP receives on the members, the kernel sends."""

from collections.abc import Callable
from pathlib import Path

import pytest
from harness import clients, kernel, links
from harness.lab import Lab
from harness.paths import CLIP
from harness.server import address
from harness.transfer import transfer


@pytest.fixture
def bonded(make_lab: Callable[..., Lab]) -> Lab:
    """A lab with two links, bonded at both ends; `server0` and `client0` are the members in use."""
    lab = make_lab()
    links.ip(lab, "server", f"link add server1 type veth peer name client1 netns {lab.client_namespace}")
    for role, addresses in (("server", lab.server), ("client", lab.client)):
        try:
            links.ip(lab, role, "link add bond0 type bond mode active-backup miimon 100")
        except AssertionError as error:
            if "Unknown device type" not in str(error):
                raise
            kernel.lacks("this kernel has no bonding (CONFIG_BONDING)")
        for number in (0, 1):
            lab.run(role, "ethtool", "-K", f"{role}{number}", "gro", "on")
            links.ip(lab, role, f"addr flush dev {role}{number}")
            links.ip(lab, role, f"link set {role}{number} down")
            links.ip(lab, role, f"link set {role}{number} master bond0")
            links.ip(lab, role, f"link set {role}{number} up")
        links.ip(lab, role, f"link set bond0 type bond primary {role}0")
        links.ip(lab, role, "link set bond0 up")
        links.ip(lab, role, f"addr add {addresses['ipv4']}/24 dev bond0")
    return lab


def test_members_receive_and_the_other_takes_over(bonded: Lab, make_server, certificates: Path) -> None:
    server = make_server(bonded, mode="auto")
    assert server.obtained() == "hybrid"
    with transfer(server, certificates) as under_way:
        under_way.await_more("packets by AF_XDP", "rx_xsk_packets_total", 100)
        # The client's active member goes; so does the carrier of its other end.
        links.ip(bonded, "client", "link set client0 down")
        under_way.await_more("packets by the other member", "rx_xsk_packets_total", 100)
        links.ip(bonded, "client", "link set client0 up")
        under_way.await_more("packets by AF_XDP", "rx_xsk_packets_total", 100)
    metrics = server.metrics()
    for member in ("server0", "server1"):
        assert metrics.sum("xdp_packets_total", interface=member, reason="taken") > 0


def test_a_mode_that_a_bond_cannot_have_is_refused(bonded: Lab, make_server, certificates: Path) -> None:
    refused = make_server(bonded, mode="copy", ready=False)
    assert refused.wait() == 1
    assert "bond" in refused.log() and "--io hybrid" in refused.log(), refused.log()
    server = make_server(bonded, mode="hybrid")
    (answer,) = clients.fetch(bonded, "quicgo", address(bonded.server["ipv4"]), certificates, ["/clip.mp4"])
    assert answer.sha256 == clients.sha256(CLIP)
    server.wait_for("packets by AF_XDP", lambda m: m.sum("rx_xsk_packets_total") > 0)
