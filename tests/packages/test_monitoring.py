"""Alert rules and the Grafana dashboard: promtool takes them, and each metric that they name is one of the program's."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from conftest import BINARY, PACKAGING, ROOT, need, run

RULES = PACKAGING / "prometheus" / "expressway.rules.yml"
DASHBOARD = PACKAGING / "grafana" / "expressway.json"
METRIC = re.compile(r"\bexpressway_[a-z0-9_]+")


def dashboard_queries() -> list[str]:
    """All expressions of the dashboard."""
    document = json.loads(DASHBOARD.read_text())
    return [target["expr"] for panel in document["panels"] for target in panel.get("targets", [])]


def used() -> set[str]:
    """The metrics that are named, without what makes a histogram's series."""
    text = RULES.read_text() + "\n".join(dashboard_queries()) + DASHBOARD.read_text()
    return {name.removesuffix("_bucket") for name in METRIC.findall(text)}


def known() -> set[str]:
    """The names that the sources give samples, as the page has them."""
    names: set[str] = set()
    for file in (ROOT / "crates").rglob("*.rs"):
        text = file.read_text()
        names |= set(re.findall(r'"([a-z][a-z0-9_]*)"', text))
        # Counters declared as fields, with the prefix that their report gives them.
        fields = set(re.findall(r"^\s+pub(?:\(\w+\))? ([a-z][a-z0-9_]*): (?:AtomicU64|u64|Counter|Gauge)", text, re.MULTILINE))
        fields |= set(re.findall(r"^\s+([a-z][a-z0-9_]*),$", text, re.MULTILINE))
        names |= fields | {f"{prefix}_{field}" for field in fields for prefix in ("fanout", "relay", "relay_receiver")}
    return names


def test_promtool_takes_the_rules_and_they_fire_when_they_should() -> None:
    promtool = need("promtool")
    said = run([promtool, "check", "rules", RULES])
    assert "SUCCESS" in said, said
    said = run([promtool, "test", "rules", RULES.with_name("expressway.rules.test.yml")])
    assert "SUCCESS" in said, said


def test_every_alert_is_tried() -> None:
    tests = RULES.with_name("expressway.rules.test.yml").read_text()
    alerts = re.findall(r"- alert: (\w+)", RULES.read_text())
    assert len(alerts) == len(set(alerts)) > 10
    assert [alert for alert in alerts if f"alertname: {alert}\n" not in tests] == []


def test_promtool_takes_the_dashboards_queries(tmp_path: Path) -> None:
    """As rules, since that is what promtool checks; Grafana's variables stand for a duration and an expression."""
    lines = ["groups:", "- name: dashboard", "  rules:"]
    for number, query in enumerate(dashboard_queries()):
        lines += [f"  - record: query:{number}", f"    expr: {json.dumps(query.replace('$__rate_interval', '1m').replace('$instance', '.*'))}"]
    file = tmp_path / "rules.yml"
    file.write_text("\n".join(lines) + "\n")
    run([need("promtool"), "check", "rules", file])


def test_every_metric_is_one_of_the_programs() -> None:
    names = known()
    metrics = {name.removeprefix("expressway_") for name in used()}
    assert len(metrics) > 25
    missing = {name for name in metrics if name not in names and name.removesuffix("_total") not in names}
    assert missing == set()


def test_panels_have_places_of_their_own_and_a_source() -> None:
    document = json.loads(DASHBOARD.read_text())
    taken: set[tuple[int, int]] = set()
    for panel in document["panels"]:
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert place["x"] + place["w"] <= 24 and not cells & taken, panel["title"]
        taken |= cells
        for target in panel.get("targets", []):
            assert target["datasource"]["uid"] == "${datasource}", panel["title"]
    ids = [panel["id"] for panel in document["panels"]]
    assert len(ids) == len(set(ids))


# Commands with their configuration, and which of the named metrics are theirs.
RUNNING = {
    "serve": (
        '[server]\nlisten = ["127.0.0.1:4433"]\n[io]\nmode = "udp"\n[tls]\ncertificate = "cert.pem"\nprivate_key = "key.pem"\n'
        '[[site]]\nhosts = ["localhost"]\norigin = "http://127.0.0.1:9"\ncache = true\n'
        '[keys]\nfile = "shared.keys"\nsigner = "signer.pub"\n',
        r"_(fanout|guard|balance|relay|forward|agent|io)_",
    ),
    "relay": (
        '[[room]]\nname = "a"\nrtp_in = "127.0.0.1:5004"\nrtp_out = ["127.0.0.1:5104"]\n[io]\nmode = "udp"\n',
        r"^expressway_(?!relay_)",
    ),
    "guard": ('interfaces = ["a0"]\n[[rule]]\nname = "a"\naction = "drop"\nprotocol = "udp"\n', r"^expressway_(?!guard_)"),
    "balance": (
        'interfaces = ["a0"]\n[[service]]\nname = "a"\nlisten = "192.0.2.1:80"\nprotocol = "tcp"\n'
        '[[service.node]]\naddress = "192.0.2.21"\n',
        r"^expressway_(?!balance_)",
    ),
    "forward": ('interfaces = ["a0", "b0"]\n', r"^expressway_(?!forward_packets)"),
    "fanout": ("--udp 127.0.0.1:5000 --tcp 127.0.0.1:5001", r"^expressway_(?!fanout_)"),
}


@pytest.mark.parametrize("command", RUNNING)
def test_a_running_process_has_what_is_named(command: str, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        assert "EXPRESSWAY_REQUIRE_ROOT_TESTS" not in os.environ, "needs root"
        pytest.skip("needs root")
    text, others = RUNNING[command]
    listen, config = f"unix:{tmp_path}/admin.sock", tmp_path / "a.toml"
    run([BINARY, "cert", "--host", "localhost", "--out", tmp_path])
    run([BINARY, "keys", "new", "--out", tmp_path])
    config.write_text(f'{text}[admin]\nlisten = "{listen}"\n')
    words = [*text.split(), "--admin", listen] if command == "fanout" else ["--config", config]
    inside = ["unshare", "--net", "sh", "-c", 'ip link set lo up; ip link add a0 type veth peer b0; ip link set a0 up; ip link set b0 up; exec "$@"', "sh"]
    with subprocess.Popen([*inside, BINARY, command, *words], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout and process.stdout.readline().startswith("ready ")
            address = ["--unix-socket", f"{tmp_path}/admin.sock", "http://localhost/metrics"]
            page = run(["curl", "--silent", "--show-error", "--fail", *address])
        finally:
            process.terminate()
    there = {re.sub("_bucket$", "", name) for name in METRIC.findall(page)}
    expected = {name for name in used() if not re.search(others, name)}
    assert expected and expected - there == set()


@pytest.mark.parametrize("word", ["severity"])
def test_every_alert_says_how_bad_it_is(word: str) -> None:
    alerts = RULES.read_text().split("- alert: ")[1:]
    assert all(re.search(rf"labels: \{{{word}: (critical|warning|info)\}}", alert) for alert in alerts)
    assert all("summary: " in alert and "description: " in alert for alert in alerts)
