"""What RFC 9114, RFC 9204, RFC 9218 and RFC 9000 forbid, by two clients: each error is answered with its code."""

import json
import subprocess
from pathlib import Path

import pytest
from harness import clients
from harness.lab import Lab
from harness.paths import CLIENTS, HOST, LIMIT, PEERS, run
from harness.server import Server, address

PYTHON = PEERS / "venv/bin/python"


def table() -> list[dict]:
    """The cases of the hostile clients."""
    return json.loads(run([PYTHON, CLIENTS / "hostile", "cases"]))


def compare(cases: list[dict], played: dict[str, str]) -> None:
    """Every case was played, and came to what it should."""
    assert set(played) == {case["name"] for case in cases}
    wrong = [
        f"{case['name']} (RFC {case['reference']}): {case['expect']} expected, {played[case['name']]} seen"
        for case in cases
        if played[case["name"]] not in case["expect"].split(" or ")
    ]
    assert not wrong, "\n".join(wrong)


def by_aioquic(lab: Lab, connect: str) -> tuple[list[dict], dict[str, str]]:
    """All cases."""
    played = lab.run("client", PYTHON, CLIENTS / "hostile", "play", "-connect", connect, "-name", HOST)
    return table(), json.loads(played)


def by_h3i(lab: Lab, connect: str) -> tuple[list[dict], dict[str, str]]:
    """Those that take no more than streams."""
    cases = [case for case in table() if case["portable"]]
    line = lab.inside("client", PEERS / "h3i-player", connect, HOST)
    result = subprocess.run(
        line, input=json.dumps(cases), capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert result.returncode == 0, result.stderr
    return cases, json.loads(result.stdout)


def still_serves(server: Server, certificates: Path) -> None:
    """Nothing of it touched anybody else, or the log."""
    connect = address(server.lab.server["ipv4"])
    (answer,) = clients.fetch(server.lab, "quicgo", connect, certificates, ["/small.txt"])
    assert answer.status == 200
    for word in ("ERROR", "WARN", "panicked"):
        assert word not in server.log(), server.log()


@pytest.mark.parametrize("play", [by_aioquic, by_h3i])
def test_each_error_of_a_client_has_its_code(make_lab, make_server, certificates: Path, play) -> None:
    lab = make_lab()
    server = make_server(lab)
    cases, played = play(lab, address(lab.server["ipv4"]))
    compare(cases, played)
    still_serves(server, certificates)
    # A connection that is closed for its client's fault is counted so, a request that is refused likewise.
    closed = sum(played[case["name"]].startswith(("application", "transport")) for case in cases)
    malformed = sum(played[case["name"]] in ("reset 0x10e", "reset 0x10d") for case in cases)
    metrics = server.wait_for("errors counted", lambda m: m.sum("refused_malformed_total") >= malformed)
    assert metrics.sum("connections_protocol_error_total") >= closed * 9 // 10
    server.stop()
