"""Independent clients fetch a real clip, whole and in ranges, in every I/O mode."""

import time
from pathlib import Path

import pytest
from harness import clients
from harness.paths import CLIP, LIMIT
from harness.server import Server, address

SIZE = CLIP.stat().st_size if CLIP.exists() else 0
RANGES = {
    "0-999": slice(0, 1000),
    "1000-200000": slice(1000, 200_001),
    "500000-": slice(500_000, None),
    "-4096": slice(-4096, None),
}

# What each asked mode obtains on a veth, which has no zero-copy, and which ways packets then take.
MODES = {
    "udp": ("udp", "kernel", "kernel"),
    "copy": ("copy", "xsk", "xsk"),
    "hybrid": ("hybrid", "xsk", "kernel"),
    "generic": ("generic", "xsk", "xsk"),
    "auto": ("hybrid", "xsk", "kernel"),
}


def check_ways(server: Server, received: str, sent: str) -> None:
    """Packets took the ways that the mode is made of.

    The kernel's socket may send the first ones to a neighbour that is not resolved yet.
    """
    metrics = server.wait_for(
        f"packets came by {received} and left by {sent}",
        lambda m: m.sum(f"rx_{received}_packets_total") > 0 and m.sum(f"tx_{sent}_bytes_total") > SIZE,
    )
    if received == "kernel":
        assert metrics.sum("rx_xsk_packets_total") == 0
    if sent == "kernel":
        assert metrics.sum("tx_xsk_packets_total") == 0
    else:
        check_few_by_kernel(server)


def check_few_by_kernel(server: Server) -> None:
    """The kernel sends for want of a neighbour only, and few packets of all, or of a clip that is fetched once it is known.

    How many at first is a matter of how soon the answer is seen.
    """
    names = ("tx_xsk_packets_total", "tx_kernel_packets_total")
    before, deadline = [0, 0], time.monotonic() + LIMIT
    while True:
        metrics = server.metrics()
        now = [metrics.sum(name) for name in names]
        assert metrics.sum("tx_fallback_neighbour_total") == now[1]
        by_xsk, by_kernel = (after - then for after, then in zip(now, before, strict=True))
        if by_xsk > 10 * by_kernel:
            return
        assert time.monotonic() < deadline, f"{by_kernel} packets by the kernel, {by_xsk} by AF_XDP"
        before = now
        reached, certificates = address(server.lab.server["ipv4"]), server.settings.certificates
        (answer,) = clients.fetch(server.lab, "quicgo", reached, certificates, ["/clip.mp4"])
        assert answer.bytes == SIZE
        # A worker's numbers are a moment old.
        server.wait_for("its packets", lambda m: sum(m.sum(name) for name in names) > sum(before))


def check_fetches(server: Server, certificates: Path, host: str, port_address: str, client: str) -> None:
    """One client, one address: the whole clip, then ranges of it."""
    got = clients.fetch(server.lab, client, port_address, certificates, ["/clip.mp4"], list(RANGES))
    whole, *parts = got
    assert (whole.status, whole.bytes, whole.sha256) == (200, SIZE, clients.sha256(CLIP)), host
    assert [part.range for part in parts] == list(RANGES)
    for part, span in zip(parts, RANGES.values(), strict=True):
        start, stop, _ = span.indices(SIZE)
        assert part.status == 206
        assert part.content_range == f"bytes {start}-{stop - 1}/{SIZE}"
        assert (part.bytes, part.sha256) == (stop - start, clients.sha256(CLIP, span))


@pytest.mark.parametrize("mtu", [1500, 9000])
@pytest.mark.parametrize("mode", list(MODES))
def test_every_client_in_every_mode(make_lab, make_server, certificates: Path, mode: str, mtu: int) -> None:
    lab = make_lab(mtu=mtu, second_address=True)
    hosts = [lab.server["ipv4"], lab.server["ipv6"], lab.server["second_ipv4"]]
    server = make_server(lab, mode=mode, listen=[address(host) for host in hosts])
    obtained, received, sent = MODES[mode]
    assert server.obtained() == obtained
    requests = 0
    for host in hosts:
        for client in clients.CLIENT_NAMES:
            check_fetches(server, certificates, host, address(host), client)
            requests += 1 + len(RANGES)
    metrics = server.wait_for(
        "every response counted", lambda m: m.sum("responses_complete_total") >= requests
    )
    assert metrics.sum("requests_total") == requests
    # May fetch more.
    check_ways(server, received, sent)


@pytest.mark.parametrize("udp_send", ["gso", "sendmmsg", "sendmsg"])
def test_every_way_to_send_by_the_kernel(make_lab, make_server, certificates: Path, udp_send: str) -> None:
    lab = make_lab()
    server = make_server(lab, mode="udp", udp_send=udp_send)
    check_fetches(server, certificates, "ipv4", address(lab.server["ipv4"]), "quicgo")
    metrics = server.wait_for("the bytes counted", lambda m: m.sum("tx_kernel_bytes_total") > SIZE)
    packets, calls = metrics.sum("tx_kernel_packets_total"), metrics.sum("tx_syscalls_total")
    if udp_send == "sendmsg":
        assert calls >= packets
    else:
        assert calls < packets / 2


def test_wildcards_answer_from_the_address_that_was_asked(make_lab, make_server, certificates: Path) -> None:
    lab = make_lab(second_address=True)
    server = make_server(lab, mode="copy", listen=["0.0.0.0:4433", "[::]:4433"])
    for key in ("ipv4", "second_ipv4", "ipv6", "second_ipv6"):
        check_fetches(server, certificates, key, address(lab.server[key]), "quicgo")
    check_ways(server, "xsk", "xsk")


@pytest.mark.parametrize("mode", ["copy", "udp"])
@pytest.mark.parametrize("wait", ["interrupt", "busy-poll", "spin"])
def test_every_way_to_wait(make_lab, make_server, certificates: Path, wait: str, mode: str) -> None:
    lab = make_lab()
    host = lab.server["ipv4"]
    server = make_server(lab, mode=mode, listen=[address(host)], more={"io": {"wait": f'"{wait}"'}})
    check_fetches(server, certificates, host, address(host), clients.CLIENT_NAMES[0])
    if wait == "spin":
        server.wait_for("spins", lambda metrics: metrics.sum("spins_total") > 0)
    else:
        assert server.metrics().sum("spins_total") == 0
    if wait == "busy-poll" and mode == "copy":
        server.wait_log("no NAPI ID")
