"""Metrics pushed to an OpenTelemetry collector, whose messages are OpenTelemetry's own."""

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.clients import fetch
from harness.lab import Lab
from harness.paths import CLIENTS, LIMIT, PEERS
from harness.server import Server, address


@contextmanager
def collector(lab: Lab, out: Path, mode: str = "take") -> Iterator[str]:
    """A collector on the server's side; where it is."""
    words = [PEERS / "venv/bin/python", CLIENTS / "otlp_collector.py", "-out", out, "-mode", mode]
    with subprocess.Popen(lab.inside("server", *map(str, words)), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().split()[1]}"
        finally:
            process.terminate()
        assert process.stdout.read() == "", "it got something else"


def otlp(endpoint: str, **more: str) -> dict[str, dict[str, str]]:
    """The section."""
    return {"otlp": {"endpoint": f'"{endpoint}"', "interval": '"1s"', "timeout": '"1s"', **more}}


def last(out: Path) -> dict[str, Any]:
    """The metrics of the last push, by name."""
    (resource,) = json.loads(out.read_text().splitlines()[-1])["resourceMetrics"]
    (scope,) = resource["scopeMetrics"]
    assert scope["scope"]["name"] == "expressway"
    return {metric["name"]: metric for metric in scope["metrics"]}


def wait(out: Path, true: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Waits for a push that says so."""
    deadline = time.monotonic() + LIMIT
    while True:
        if out.exists() and out.read_text().endswith("\n") and true(found := last(out)):
            return found
        assert time.monotonic() < deadline, out.read_text()[-2000:] if out.exists() else "nothing came"
        time.sleep(0.1)


def total(metric: dict[str, Any]) -> int:
    """All values of a sum."""
    assert metric["sum"]["isMonotonic"] and metric["sum"]["aggregationTemporality"] == "AGGREGATION_TEMPORALITY_CUMULATIVE"
    return sum(int(point["asInt"]) for point in metric["sum"]["dataPoints"])


def test_a_collector_gets_what_the_metrics_page_shows(make_lab, make_server, readable: Path, tmp_path: Path) -> None:
    """Of a server without privilege."""
    lab, certificates = make_lab(), readable
    out = tmp_path / "pushed"
    with collector(lab, out) as endpoint:
        server: Server = make_server(
            lab, mode="udp", certificates=readable, more={**otlp(endpoint), "server": {"node": '"edge-7"', "user": '"nobody"'}}
        )
        for _ in range(3):
            assert fetch(lab, "quicgo", address(lab.server["ipv4"]), certificates, ["/small.txt"])[0].status == 200
        found = wait(out, lambda metrics: total(metrics["expressway_requests"]) == 3)
        resource = json.loads(out.read_text().splitlines()[-1])["resourceMetrics"][0]["resource"]["attributes"]
        attributes = {one["key"]: one["value"]["stringValue"] for one in resource}
        assert attributes["service.name"] == "expressway" and attributes["service.instance.id"] == "edge-7"
        page = server.ask("/metrics")[1]
        kinds = dict(line.split()[2:] for line in page.splitlines() if line.startswith("# TYPE"))
        pushed = {"sum": "counter", "gauge": "gauge", "histogram": "histogram"}
        seen = {}
        for name, metric in found.items():
            (kind,) = {"sum", "gauge", "histogram"} & set(metric)
            seen[name + ("_total" if kind == "sum" else "")] = pushed[kind]
            assert metric["description"]
        assert seen == kinds
        turns = found["expressway_worker_turn_seconds"]["histogram"]["dataPoints"]
        for point in turns:
            assert len(point["bucketCounts"]) == len(point["explicitBounds"]) + 1
            assert sum(map(int, point["bucketCounts"])) == int(point["count"]) > 0
        points = found["expressway_requests"]["sum"]["dataPoints"]
        assert all(int(point["startTimeUnixNano"]) < int(point["timeUnixNano"]) for point in points)
        metrics = server.metrics()
        assert metrics.sum("otlp_pushes_total") >= 1 and metrics.sum("otlp_failures_total") == 0


def test_a_collector_that_is_silent_absent_or_busy_costs_no_request(make_lab, make_server, certificates: Path, tmp_path: Path) -> None:
    lab = make_lab()
    place = address(lab.server["ipv4"])
    ask = lambda: fetch(lab, "quicgo", place, certificates, ["/clip.mp4"])[0].status  # noqa: E731
    for mode, reason in (("silent", "timeout"), ("busy", "busy"), ("absent", "connect")):
        with collector(lab, tmp_path / mode, "take" if mode == "absent" else mode) as endpoint:
            if mode == "absent":
                endpoint = "http://127.0.0.1:9"
            server = make_server(lab, mode="udp", more=otlp(endpoint))
            server.wait_for(reason, lambda metrics, r=reason: metrics.sum("otlp_failures_total", reason=r) >= 3)
            assert ask() == 200
            assert server.metrics().sum("otlp_pushes_total") == 0
            assert server.log().count("metrics not pushed") == 1, "told once"
            server.stop()
