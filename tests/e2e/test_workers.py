"""Several workers and queues: clients whose port changes, clients that migrate, a thousand at once."""

from pathlib import Path

import pytest
from harness import clients
from harness.paths import LONG_CLIP
from harness.server import address

MODES = ["udp", "copy", "hybrid"]


@pytest.mark.parametrize("mode", MODES)
def test_clients_whose_port_changes_in_mid_transfer(
    make_lab, make_server, certificates: Path, mode: str
) -> None:
    lab = make_lab(queues=2)
    server = make_server(lab, mode=mode, workers=2)
    assert {ready.workers for ready in server.ready} == {2}
    connect = address(lab.server["ipv4"])
    rebinds = 0
    # Each new port has the same chance to be hashed to the other queue: over six clients some will be.
    for _ in range(6):
        report = clients.report(lab, connect, certificates, ["/long.mp4"], "-rebind-every", "12000000")
        assert not report.get("error"), report
        (answer,) = report["responses"]
        assert answer["sha256"] == clients.sha256(LONG_CLIP)
        assert report["rebinds"] >= 3
        rebinds += report["rebinds"]
    metrics = server.wait_for(
        "the migrations counted", lambda m: m.sum("paths_migrated_total") >= rebinds
    )
    if mode != "udp":
        # Queues know no connection IDs, so AF_XDP gives some packets to the wrong worker.
        assert metrics.sum("handed_over_total") > 0
    # Nothing that was handed over is lost.
    server.wait_for(
        "all taken that was handed", lambda m: m.sum("handed_over_total") == m.sum("taken_over_total")
    )


@pytest.mark.parametrize("mode", MODES)
def test_a_client_whose_port_keeps_changing(make_lab, make_server, certificates: Path, mode: str) -> None:
    lab = make_lab(queues=2)
    make_server(lab, mode=mode, workers=2)
    connect = address(lab.server["ipv4"])
    more = ["-rebind-every", "2000000", "-timeout", "8s"]
    report = clients.report(lab, connect, certificates, ["/long.mp4"], *more)
    assert not report.get("error"), report
    assert report["responses"][0]["sha256"] == clients.sha256(LONG_CLIP)
    assert report["rebinds"] >= 15


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
