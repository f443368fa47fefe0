"""Several workers and queues: clients whose port changes, clients that migrate, a thousand at once."""

from pathlib import Path

import pytest
from harness import clients
from harness.paths import LONG_CLIP
from harness.server import address

MODES = ["udp", "copy", "hybrid"]


@pytest.mark.parametrize("mode", MODES)
def test_a_client_whose_port_keeps_changing(make_lab, make_server, certificates: Path, mode: str) -> None:
    lab = make_lab(queues=2)
    server = make_server(lab, mode=mode, workers=2)
    assert {ready.workers for ready in server.ready} == {2}
    connect = address(lab.server["ipv4"])
    report = clients.report(lab, connect, certificates, ["/long.mp4"], "-rebind-every", "2000000")
    assert not report.get("error"), report
    (answer,) = report["responses"]
    assert answer["sha256"] == clients.sha256(LONG_CLIP)
    # 42 MB, a new port every 2 MB: over that many ports the flow hash picks the other worker's queue too.
    assert report["rebinds"] >= 15
    metrics = server.wait_for(
        "the last migration counted", lambda m: m.sum("paths_migrated_total") >= report["rebinds"] - 1
    )
    if mode != "udp":
        # Queues know no connection IDs, so AF_XDP gives some packets to the wrong worker. The kernel's
        # selector reads the ID, and there none may be.
        assert metrics.sum("handed_over_total") > 0
    assert metrics.sum("handed_over_total") == metrics.sum("taken_over_total")


@pytest.mark.parametrize("mode", MODES)
def test_a_client_that_migrates(make_lab, make_server, certificates: Path, mode: str) -> None:
    lab = make_lab(queues=2)
    server = make_server(lab, mode=mode, workers=2)
    report = clients.report(
        lab, address(lab.server["ipv4"]), certificates, ["/long.mp4"],
        "-migrate-at", "1000000",
    )
    assert not report.get("error"), report
    assert report["migrations"] == 1
    assert report["responses"][0]["sha256"] == clients.sha256(LONG_CLIP)
    server.wait_for("the migration counted", lambda m: m.sum("paths_migrated_total") >= 1)


@pytest.mark.parametrize("mode", MODES)
def test_a_thousand_connections_at_once(make_lab, make_server, certificates: Path, mode: str) -> None:
    lab = make_lab(queues=2)
    server = make_server(lab, mode=mode, workers=2)
    report = clients.report(
        lab, address(lab.server["ipv4"]), certificates, ["/small.txt"], "-connections", "1000",
        "-timeout", "100s",
    )
    assert not report.get("error"), report
    assert (report["connections"], report["complete"]) == (1000, 1000)
    (answer,) = report["responses"]
    assert (answer["status"], answer["bytes"]) == (200, len("A small file.\n"))
    metrics = server.wait_for("all have closed", lambda m: m.sum("connections") == 0)
    assert metrics.sum("connections_established_total") == 1000
    # Both workers had their share.
    for worker in ("0", "1"):
        assert metrics.sum("connections_established_total", worker=worker) > 200
