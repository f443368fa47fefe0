"""What a server writes down: access log in both formats, rotation, qlog, TLS secrets; and Retry by its counter."""

import json
import re
import signal
from pathlib import Path

import pytest
from harness import clients
from harness.server import address

COMBINED = re.compile(
    r'^198\.18\.0\.2 - - \[\d\d/\w{3}/\d{4}:\d\d:\d\d:\d\d [+-]\d{4}\] "GET /clip\.mp4 HTTP/3(\.0)?" 200 (\d+) "[^"]*" "[^"]*"'
)


def fetch_clip(lab, server, certificates: Path) -> clients.Answer:
    (answer,) = clients.fetch(lab, "quicgo", address(lab.server["ipv4"]), certificates, ["/clip.mp4"])
    assert answer.status == 200
    server.wait_for("request counted", lambda m: m.sum("requests_total") >= 1)
    return answer


def lines_of(server, log: Path, count: int) -> list[str]:
    """The log's lines, once there are that many: they are written behind the response."""
    server.wait_for(f"{count} lines in {log.name}", lambda _: log.exists() and log.read_text().count("\n") >= count)
    return log.read_text().splitlines()


def test_the_access_log_as_json_follows_a_rotation(make_lab, make_server, certificates: Path, tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    lab = make_lab()
    server = make_server(lab, mode="copy", more={"log": {"access": f'"{log}"'}})
    answer = fetch_clip(lab, server, certificates)
    (line,) = lines_of(server, log, 1)
    record = json.loads(line)
    assert record["status"] == 200
    assert record["method"] == "GET"
    assert answer.bytes in record.values(), record
    assert any("198.18.0.2" in str(value) for value in record.values()), record
    # As logrotate does it.
    log.rename(tmp_path / "access.log.1")
    server.signal(signal.SIGHUP)
    server.wait_log("reload: done")
    fetch_clip(lab, server, certificates)
    assert len(lines_of(server, log, 1)) == 1


def test_the_access_log_in_the_combined_format(make_lab, make_server, certificates: Path, tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    lab = make_lab()
    server = make_server(lab, mode="udp", more={"log": {"access": f'"{log}"', "format": '"combined"'}})
    answer = fetch_clip(lab, server, certificates)
    (line,) = lines_of(server, log, 1)
    found = COMBINED.match(line)
    assert found, line
    assert int(found[2]) == answer.bytes


def test_qlog_and_secrets_are_written_when_asked(make_lab, make_server, certificates: Path, tmp_path: Path) -> None:
    qlog, keys = tmp_path / "qlog", tmp_path / "keys.log"
    qlog.mkdir()
    lab = make_lab()
    more = {"quic": {"qlog": f'"{qlog}"'}, "tls": {"keylog": f'"{keys}"'}}
    server = make_server(lab, mode="copy", more=more)
    fetch_clip(lab, server, certificates)
    assert "SERVER_TRAFFIC_SECRET_0" in keys.read_text()
    assert keys.stat().st_mode & 0o077 == 0, "secrets are for the owner alone"
    (log,) = qlog.iterdir()
    assert "qlog" in log.read_text()


@pytest.mark.parametrize("client", ["curl", "aioquic", "quicgo"])
def test_every_client_takes_a_retry(make_lab, make_server, certificates: Path, client: str) -> None:
    lab = make_lab()
    server = make_server(lab, mode="copy", more={"quic": {"retry": '"always"'}})
    (answer,) = clients.fetch(lab, client, address(lab.server["ipv4"]), certificates, ["/clip.mp4"])
    assert answer.status == 200
    server.wait_for("address proven", lambda m: m.sum("retries_validated_total") >= 1)
