"""The gateway end to end on a real driver: an independent client, whole files and ranges, both families."""

from pathlib import Path

import pytest
from harness import clients
from harness.server import address

FILE = "/noise.bin"
RANGES = {"0-999": slice(0, 1000), "1000-200000": slice(1000, 200_001), "-4096": slice(-4096, None)}

# What each asked mode obtains where the driver does zero-copy and does not segment UDP: whether the sockets are
# zero-copy, and whether AF_XDP sends.
MODES = {
    "zerocopy": ("zerocopy", True, True),
    "auto": ("zerocopy", True, True),
    "copy": ("copy", False, True),
    "hybrid": ("hybrid", True, False),
}


@pytest.mark.parametrize("mode", list(MODES))
def test_every_mode_serves_whole_files_and_ranges(lab, make_server, root: Path, certificates: Path, mode: str) -> None:
    obtained, zero_copy, sends = MODES[mode]
    server = make_server(mode=mode)
    assert server.obtained() == obtained
    assert lab.zero_copy_sockets() == [zero_copy] * lab.queues, server.log()
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
    requests = 2 * (1 + len(RANGES))
    metrics = server.wait_for("all counted", lambda m: m.sum("responses_complete_total") == requests)
    listening = [sample.labels["io"] for sample in metrics.samples if sample.name == "expressway_listen"]
    assert listening == [obtained] * 2, "the metrics page says what `ready` says"
    assert metrics.sum("rx_express_packets_total") > 1000
    if sends:
        # The kernel sends what tells it that a neighbour is still there.
        assert metrics.sum("tx_express_packets_total") > 50 * metrics.sum("tx_kernel_packets_total")
    else:
        assert metrics.sum("tx_express_packets_total") == 0
    assert lab.zero_copy_sockets() == [zero_copy] * lab.queues, "no socket was replaced by a lesser one"


def test_a_link_that_goes_down_and_comes_back(lab, make_server, root: Path, certificates: Path) -> None:
    server = make_server(mode="zerocopy")
    connect = address(lab.server["ipv4"])
    before = clients.fetch(lab, "quicgo", connect, certificates, [FILE])
    lab.run("server", "ip", "link", "set", "server0", "down")
    server.wait_log("link is down")
    lab.run("server", "ip", "link", "set", "server0", "up")
    server.wait_log("AF_XDP sends again")
    sent = server.metrics().sum("tx_express_packets_total")
    assert clients.fetch(lab, "quicgo", connect, certificates, [FILE]) == before
    server.wait_for("AF_XDP sends", lambda m: m.sum("tx_express_packets_total") > sent + 1000)
    assert lab.zero_copy_sockets() == [True] * lab.queues


def test_a_restart_at_once_is_zero_copy_again(lab, make_server, certificates: Path) -> None:
    for _ in range(3):
        server = make_server(mode="zerocopy")
        (answer,) = clients.fetch(lab, "quicgo", address(lab.server["ipv6"]), certificates, [FILE])
        assert answer.status == 200
        server.kill()


def test_queues_and_workers_share_many_connections(lab, make_server, certificates: Path) -> None:
    assert lab.queues > 1, "a bed with one queue has nothing to share"
    server = make_server(mode="zerocopy", workers=lab.queues)
    report = clients.report(
        lab, address(lab.server["ipv4"]), certificates, [FILE], "-connections", "16", "-timeout", "280s"
    )
    assert not report.get("error"), report
    assert (report["connections"], report["complete"]) == (16, 16)
    metrics = server.wait_for("all counted", lambda m: m.sum("responses_complete_total") == 16)
    for worker in range(lab.queues):
        assert metrics.sum("rx_express_packets_total", worker=str(worker)) > 0, f"worker {worker} received nothing"
    assert lab.zero_copy_sockets() == [True] * lab.queues
