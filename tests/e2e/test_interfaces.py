"""What happens to interfaces under a running server. In each test a client is in the middle of a transfer that has
to come to its end unharmed, and packets have to take the AF_XDP path again wherever there is one."""

import signal
from pathlib import Path

import pytest
from harness import clients, links
from harness.server import address
from harness.transfer import reattached, transfer

XSK_MODES = ["copy", "hybrid"]


@pytest.mark.parametrize("mode", XSK_MODES)
def test_an_interface_that_is_removed_and_made_again(make_lab, make_server, certificates: Path, mode: str) -> None:
    lab = make_lab()
    server = make_server(lab, mode=mode)
    with transfer(server, certificates) as under_way:
        for times in (1, 2):
            links.remove(lab)
            server.wait_for("kernel UDP", lambda m: m.sum("listen", io="udp") == 1)
            links.recreate(lab)
            server.wait_for("reopened", reattached("removed", times))
            under_way.await_more("packets by AF_XDP", "rx_xsk_packets_total", 100)
    assert server.metrics().sum("listen", io=mode) == 1
    assert "server0" in server.log() and "removed" in server.log()


def test_an_interface_that_is_made_again_before_anyone_looks(make_lab, make_server, certificates: Path) -> None:
    lab = make_lab()
    server = make_server(lab, mode="copy")
    with transfer(server, certificates) as under_way:
        links.remove(lab)
        links.recreate(lab)
        server.wait_for("reopened", reattached("removed"))
        under_way.await_more("packets by AF_XDP", "rx_xsk_packets_total", 100)


@pytest.mark.parametrize("mode", XSK_MODES)
def test_channels_that_become_more(make_lab, make_server, certificates: Path, mode: str) -> None:
    lab = make_lab(queues=4)
    links.set_channels(lab, 1)
    server = make_server(lab, mode=mode, workers=2)
    with transfer(server, certificates) as under_way:
        for times, (before, count) in enumerate(((1, 2), (2, 4)), 1):
            links.set_channels(lab, count)
            server.wait_for("reopened", reattached("channels", times))
            under_way.await_more("packets by AF_XDP", "rx_xsk_packets_total", 100)
            assert f"channels changed from {before} to {count}" in server.log()
        # The kernel lets nobody take the queues of bound sockets away; the message is its own.
        with pytest.raises(AssertionError, match="AF_XDP sockets"):
            links.set_channels(lab, 1)
        under_way.await_more("packets by AF_XDP", "rx_xsk_packets_total", 100)


@pytest.mark.parametrize("mode", [*XSK_MODES, "udp"])
def test_an_mtu_that_changes(make_lab, make_server, certificates: Path, mode: str) -> None:
    lab = make_lab()
    server = make_server(lab, mode=mode)
    with transfer(server, certificates) as under_way:
        for mtu in (1400, 1500, 9000, 1300):
            links.set_mtu(lab, mtu)
            under_way.await_more(f"bytes at an MTU of {mtu}", "bytes_sent_total", 5_000_000)
            if mode != "udp":
                under_way.await_more(f"packets by AF_XDP at {mtu}", "rx_xsk_packets_total", 100)


@pytest.mark.parametrize("mode", XSK_MODES)
def test_a_neighbour_that_changes_its_hardware_address(
    make_lab, make_server, certificates: Path, mode: str
) -> None:
    lab = make_lab()
    server = make_server(lab, mode=mode)
    with transfer(server, certificates) as under_way:
        for last in (1, 2):
            links.ip(lab, "client", f"link set client0 address 02:00:00:00:77:0{last}")
            under_way.await_more("bytes to the new address", "bytes_sent_total", 5_000_000)
            if mode == "copy":
                under_way.await_more("packets by AF_XDP", "tx_xsk_packets_total", 100)


def test_a_route_that_moves_to_another_interface_and_back(make_lab, make_server, certificates: Path) -> None:
    lab = make_lab()
    server = make_server(lab, mode="copy")
    links.ip(lab, "server", f"link add other0 type veth peer name other1 netns {lab.client_namespace}")
    links.ip(lab, "server", "link set other0 up")
    links.ip(lab, "client", "link set other1 up")
    client = lab.client["ipv4"]
    with transfer(server, certificates) as under_way:
        links.ip(lab, "server", f"route add {client}/32 dev other0")
        under_way.await_more("packets by the kernel", "tx_fallback_route_total", 1000)
        links.ip(lab, "server", f"route del {client}/32 dev other0")
        under_way.await_more("packets by AF_XDP", "tx_xsk_packets_total", 1000)


def test_a_bridge_that_takes_the_interface_and_gives_it_back(make_lab, make_server, certificates: Path) -> None:
    lab = make_lab()
    server = make_server(lab, mode="auto")
    own = f"{lab.server['ipv4']}/24"
    links.ip(lab, "server", "link add bridge0 type bridge")
    links.ip(lab, "server", "link set bridge0 up")
    with transfer(server, certificates) as under_way:
        links.ip(lab, "server", "link set server0 master bridge0")
        links.ip(lab, "server", f"addr del {own} dev server0")
        links.ip(lab, "server", f"addr add {own} dev bridge0")
        under_way.await_more("packets by the kernel", "rx_kernel_packets_total", 100)
        server.wait_for("kernel UDP", lambda m: m.sum("listen", io="udp") == 1)
        links.ip(lab, "server", f"addr del {own} dev bridge0")
        links.ip(lab, "server", "link set server0 nomaster")
        links.ip(lab, "server", f"addr add {own} dev server0")
        under_way.await_more("packets by AF_XDP", "rx_xsk_packets_total", 100)


def test_a_macvlan_above_the_interface(make_lab, make_server, certificates: Path) -> None:
    lab = make_lab()
    above = "198.18.0.77"
    server = make_server(lab, mode="auto", listen=["0.0.0.0:4433"])
    with transfer(server, certificates) as under_way:
        links.ip(lab, "server", "link add link server0 name above0 type macvlan mode bridge")
        links.ip(lab, "server", "link set above0 up")
        links.ip(lab, "server", f"addr add {above}/24 dev above0")
        under_way.await_more("packets by AF_XDP", "rx_xsk_packets_total", 100)
        # Its own address is served too, by the kernel: its frames are not the device's.
        before = server.metrics().sum("rx_kernel_packets_total")
        (answer,) = clients.fetch(lab, "quicgo", address(above), certificates, ["/clip.mp4"])
        assert answer.status == 200
        server.wait_for("packets by the kernel", lambda m: m.sum("rx_kernel_packets_total") > before)


@pytest.mark.parametrize("kind", ["bridge", "macvlan"])
def test_an_address_where_no_af_xdp_can_be(make_lab, make_server, certificates: Path, kind: str) -> None:
    lab = make_lab()
    own = f"{lab.server['ipv4']}/24"
    links.ip(lab, "server", f"addr del {own} dev server0")
    if kind == "bridge":
        links.ip(lab, "server", "link add above0 type bridge")
        links.ip(lab, "server", "link set server0 master above0")
    else:
        links.ip(lab, "server", "link add link server0 name above0 type macvlan mode bridge")
    links.ip(lab, "server", "link set above0 up")
    links.ip(lab, "server", f"addr add {own} dev above0")
    refused = make_server(lab, mode="copy", ready=False)
    assert refused.wait() == 1
    assert "above0" in refused.log() and kind in refused.log(), refused.log()
    server = make_server(lab, mode="auto")
    assert server.obtained() == "udp"
    assert f"above0 is a {kind}" in server.log()
    (answer,) = clients.fetch(lab, "quicgo", address(lab.server["ipv4"]), certificates, ["/clip.mp4"])
    assert answer.status == 200


def test_an_address_and_an_interface_that_come_later(make_lab, make_server, certificates: Path) -> None:
    lab = make_lab()
    links.remove(lab)
    server = make_server(lab, mode="auto", listen=["0.0.0.0:4433"])
    assert server.obtained() == "udp"
    links.recreate(lab)
    server.wait_for("the AF_XDP path", lambda m: m.sum("listen", io="hybrid") == 1)
    assert server.metrics().sum("io_reattach_total", interface="server0", reason="appeared") == 1
    with transfer(server, certificates) as under_way:
        under_way.await_more("packets by AF_XDP", "rx_xsk_packets_total", 10)


def test_a_server_that_is_stopped_starves_the_fill_ring_and_recovers(
    make_lab, make_server, certificates: Path
) -> None:
    lab = make_lab()
    # As few frames as there may be: 256 to receive.
    server = make_server(lab, mode="copy", more={"io": {"frames": "512"}})
    lost = ("xdp_fill_ring_empty_total", "xdp_rx_ring_full_total", "xdp_rx_dropped_total")
    with transfer(server, certificates) as under_way:
        before = sum(under_way.start.sum(name) for name in lost)
        server.signal(signal.SIGSTOP)
        # More packets than the socket has frames for, from somebody else.
        flood = "\n".join(["import socket", "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
                           f"for _ in range(4000): s.sendto(b'x' * 100, ('{lab.server['ipv4']}', 4433))"])
        lab.run("client", "python3", "-c", flood)
        server.signal(signal.SIGCONT)
        server.wait_for("drops counted", lambda m: sum(m.sum(name) for name in lost) > before)
        under_way.await_more("packets by AF_XDP", "rx_xsk_packets_total", 100)
