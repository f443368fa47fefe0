"""A service on a bond: AF_XDP receives on the members, the kernel sends."""

from pathlib import Path

from harness import clients, links
from harness.lab import Lab
from harness.paths import CLIP
from harness.server import address
from harness.stacked import bonded
from harness.transfer import transfer

__all__ = ["bonded"]


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
