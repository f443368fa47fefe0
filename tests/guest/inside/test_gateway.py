"""The gateway end to end on a real driver: an independent client, whole files and ranges, both families."""

import time
from pathlib import Path

import pytest
from harness import clients
from harness.paths import LIMIT
from harness.server import address

FILE = "/noise.bin"
RANGES = {"0-999": slice(0, 1000), "1000-200000": slice(1000, 200_001), "-4096": slice(-4096, None)}

# What each explicit mode obtains: whether the sockets are zero-copy, and whether AF_XDP sends.
MODES = {"zerocopy": (True, True), "copy": (False, True), "hybrid": (True, False)}


def check_fetches(lab, root: Path, certificates: Path) -> int:
    """Fetches a file and parts of it by both families; returns the number of requests."""
    body = root / FILE.lstrip("/")
    size = body.stat().st_size
    for family in ("ipv4", "ipv6"):
        connect = address(lab.server[family])
        whole, *parts = clients.fetch(lab, "quicgo", connect, certificates, [FILE], list(RANGES))
        assert (whole.status, whole.bytes, whole.sha256) == (200, size, clients.sha256(body)), family
        for part, span in zip(parts, RANGES.values(), strict=True):
            start, stop, _ = span.indices(size)
            assert (part.status, part.content_range) == (206, f"bytes {start}-{stop - 1}/{size}")
            assert (part.bytes, part.sha256) == (stop - start, clients.sha256(body, span))
    return 2 * (1 + len(RANGES))


def check_truth(lab, server, mode: str, zero_copy: bool, sends: bool, requests: int) -> None:
    """What `ready`, the metrics and the kernel say of the mode agrees, and packets went that way."""
    assert server.obtained() == mode
    assert lab.zero_copy_sockets() == [zero_copy] * lab.queues, server.log()
    metrics = server.wait_for("all counted", lambda m: m.sum("responses_complete_total") == requests)
    listening = [sample.labels["io"] for sample in metrics.samples if sample.name == "expressway_listen"]
    assert listening == [mode] * 2, "the metrics page says what `ready` says"
    # A client acknowledges many packets at once.
    assert metrics.sum("rx_xsk_packets_total") > 50
    if sends:
        # The kernel sends too while the link comes up, of which it tells a second late.
        assert metrics.sum("tx_xsk_packets_total") > 100
    else:
        assert metrics.sum("tx_xsk_packets_total") == 0


@pytest.mark.parametrize("mode", list(MODES))
def test_every_mode_serves_whole_files_and_ranges(lab, make_server, root: Path, certificates: Path, mode: str) -> None:
    server = make_server(mode=mode)
    # Before the first packet: what bind obtained.
    assert lab.zero_copy_sockets() == [MODES[mode][0]] * lab.queues, server.log()
    requests = check_fetches(lab, root, certificates)
    check_truth(lab, server, mode, *MODES[mode], requests)


def test_auto_says_what_it_chose(lab, make_server, root: Path, certificates: Path) -> None:
    server = make_server(mode="auto")
    requests = check_fetches(lab, root, certificates)
    # Which of them depends on what the device can do; native XDP and zero-copy it can.
    chosen = server.obtained()
    assert chosen in ("zerocopy", "hybrid"), server.log()
    check_truth(lab, server, chosen, *MODES[chosen], requests)


def test_a_link_that_goes_down_and_comes_back(lab, make_server, root: Path, certificates: Path) -> None:
    server = make_server(mode="zerocopy")
    connect = address(lab.server["ipv4"])
    before = clients.fetch(lab, "quicgo", connect, certificates, [FILE])
    lab.run("server", "ip", "link", "set", "server0", "down")
    server.wait_log("link is down")
    lab.run("server", "ip", "link", "set", "server0", "up")
    server.wait_log("sending by AF_XDP again")
    sent = server.metrics().sum("tx_xsk_packets_total")
    # The neighbour has gone with the link: until it is known again, the kernel sends.
    deadline = time.monotonic() + LIMIT
    while server.metrics().sum("tx_xsk_packets_total") < sent + 500:
        assert time.monotonic() < deadline, f"AF_XDP sends nothing\n{server.log()}"
        assert clients.fetch(lab, "quicgo", connect, certificates, [FILE]) == before
    assert lab.zero_copy_sockets() == [True] * lab.queues


def test_a_restart_at_once_is_zero_copy_again(lab, make_server, certificates: Path) -> None:
    for _ in range(3):
        server = make_server(mode="zerocopy")
        (answer,) = clients.fetch(lab, "quicgo", address(lab.server["ipv6"]), certificates, [FILE])
        assert answer.status == 200
        server.kill()


def test_queues_and_workers_share_many_connections(lab, make_server, certificates: Path) -> None:
    assert lab.queues > 1, "a bed with one queue has nothing to share"
    lab.hash_ports()
    server = make_server(mode="zerocopy", workers=lab.queues)
    report = clients.report(
        lab, address(lab.server["ipv4"]), certificates, [FILE], "-connections", "16", "-timeout", "280s"
    )
    assert not report.get("error"), report
    assert (report["connections"], report["complete"]) == (16, 16)
    metrics = server.wait_for("all counted", lambda m: m.sum("responses_complete_total") == 16)
    for worker in range(lab.queues):
        assert metrics.sum("rx_xsk_packets_total", worker=str(worker)) > 0, f"worker {worker} received nothing"
    assert lab.zero_copy_sockets() == [True] * lab.queues
