"""`expressway qlog`: the events of one connection of a running server, beside what the client's own library logged."""

import json
import re
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

from harness.clients import fetch
from harness.lab import Lab
from harness.namespace import run_inside
from harness.paths import BINARY, CLIENTS, HOST, LIMIT, PEERS
from harness.server import ADMIN, Server, address

Events = list[dict[str, Any]]


def start(server: Server, file: Path, *words: str, times: int = 1) -> subprocess.Popen[str]:
    """A recording that waits for its connection."""
    command = server.lab.inside("server", BINARY, "qlog", "-w", file, *words)
    recording = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        server.wait_log("qlog started", times)
    except BaseException:
        recording.kill()
        recording.wait()
        raise
    return recording


def finish(recording: subprocess.Popen[str]) -> tuple[int, str]:
    """Its exit code and its error."""
    out, error = recording.communicate(timeout=LIMIT)
    assert (recording.returncode == 0) == (out != ""), (out, error)
    return recording.returncode, error


def refused(server: Server, *words: str | Path) -> tuple[int, str]:
    """The exit code and the error of a recording that does not begin."""
    command = server.lab.inside("server", BINARY, "qlog", *words)
    result = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert result.stdout == ""
    return result.returncode, result.stderr


def parse(text: str) -> Events:
    """The events of a JSON text sequence (RFC 7464), whose first is the header (qlog main schema, section 5)."""
    assert text.startswith("\x1e") and text.endswith("\n")
    header, *events = [json.loads(record) for record in text.split("\x1e")[1:]]
    assert header["file_schema"] == "urn:ietf:params:qlog:file:sequential"
    # As drafts before 08 called what is application/qlog+json-seq now: quiche writes it so.
    assert header["serialization_format"] == "JSON-SEQ"
    assert header["trace"]["vantage_point"]["type"] == "server"
    assert any("quic" in schema for schema in header["trace"]["event_schemas"])
    for event in events:
        assert {"time", "name", "data"} <= set(event), event
        assert isinstance(event["time"], int | float) and ":" in event["name"]
    return events


def packets(events: Events, name: str) -> set[int]:
    """Numbers of packets with a short header in a qlog, whoever wrote it."""
    found = [event["data"]["header"] for event in events if event["name"].endswith(name)]
    return {header["packet_number"] for header in found if header["packet_type"].upper() == "1RTT"}


def ask(lab: Lab, log: Path | None = None) -> tuple[dict, Events]:
    """A request by aioquic, and what its library says of it."""
    words = [PEERS / "venv/bin/python", CLIENTS / "aioquic_tls.py", "-connect", address(lab.server["ipv4"])]
    words += ["-name", HOST, "-path", "/clip.mp4", "-early"]
    if log:
        log.mkdir()
        words += ["-qlog", log]
    found = json.loads(lab.run("client", *map(str, words)))
    if not log:
        return found, []
    (file,) = log.iterdir()
    (trace,) = json.loads(file.read_text())["traces"]
    return found, trace["events"]


def test_a_new_connection_is_recorded_as_its_client_saw_it(make_lab, make_server, tmp_path: Path) -> None:
    lab = make_lab()
    server = make_server(lab, mode="udp")
    file = tmp_path / "one.sqlog"
    recording = start(server, file, "--client", lab.client["ipv4"], "--seconds", "60")
    found, client = ask(lab, tmp_path / "client")
    assert found["status"] == 200
    assert finish(recording)[0] == 0
    assert file.stat().st_mode & 0o777 == 0o600
    events = parse(file.read_text())
    sent, received = (packets(events, name) for name in ("packet_sent", "packet_received"))
    assert len(sent) > 20
    # What the client got the server sent, and what the server got the client sent.
    got = packets(client, "packet_received")
    assert len(got) > 20 and got <= sent
    assert received and received <= packets(client, "packet_sent")
    times = [event["time"] for event in events]
    assert times == sorted(times) and 0 <= times[0] and times[-1] < 60_000
    end = events[-1]
    assert end["name"] == "loglevel:info" and end["data"]["message"] == "end of the recording: the connection has closed; 0 events lost"
    names = {event["name"].split(":")[1] for event in events}
    assert {"packet_sent", "packet_received", "parameters_set"} <= names, names
    tokens = re.findall(r'"stateless_reset_token":"(\w*)"', file.read_text())
    assert len(tokens) > 1 and not any(tokens), "who has one can end the connection"
    # Nobody asks any more: others are not recorded, and the file is that of one connection.
    assert ask(lab)[0]["status"] == 200
    assert parse(file.read_text()) == events


def test_a_connection_is_found_by_its_id_while_it_runs(make_lab, make_server, tmp_path: Path) -> None:
    lab = make_lab()
    server = make_server(lab, mode="udp")
    words = [PEERS / "venv/bin/python", CLIENTS / "aioquic_tls.py", "-connect", address(lab.server["ipv4"])]
    words += ["-name", HOST, "-path", "/small.txt", "-hold"]
    client = subprocess.Popen(lab.inside("client", *map(str, words)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert client.stdin and client.stdout
        cid = json.loads(client.stdout.readline())["cid"]
        file = tmp_path / "two.sqlog"
        recording = start(server, file, "--connection", cid[:20], "--seconds", "60")
        # Another connection of the same client's address is not it.
        assert fetch(lab, "quicgo", address(lab.server["ipv4"]), server.settings.certificates, ["/clip.mp4"])[0].status == 200
        assert not file.exists()
        client.stdin.write("\n")
        client.stdin.close()
        assert json.loads(client.stdout.read())["status"] == 200
    finally:
        client.terminate()
        client.wait(LIMIT)
    assert finish(recording)[0] == 0
    events = parse(file.read_text())
    received = packets(events, "packet_received")
    assert received and min(received) > 0, "it was under way"


def test_a_recording_is_bounded_in_size_and_time_and_alone(make_lab, make_server, tmp_path: Path) -> None:
    lab = make_lab()
    server = make_server(lab, mode="udp")
    place = address(lab.server["ipv4"])
    file = tmp_path / "one.sqlog"
    recording = start(server, file, "--client", lab.client["ipv4"], "--seconds", "60", "--size", "20KiB")
    code, error = refused(server, "--client", "192.0.2.1", "-w", tmp_path / "other")
    assert code == 1 and "another qlog is being recorded" in error
    assert fetch(lab, "quicgo", place, server.settings.certificates, ["/clip.mp4"])[0].status == 200
    assert finish(recording)[0] == 0
    assert file.stat().st_size < (20 << 10) + 300
    assert parse(file.read_text())[-1]["data"]["message"].startswith("end of the recording: the size limit was reached")
    code, error = refused(server, "--client", "192.0.2.1", "--seconds", "1", "-w", tmp_path / "none")
    assert code == 1 and "no datagram of a matching connection arrived within 1 s" in error
    assert not (tmp_path / "none").exists()
    waiting = start(server, tmp_path / "none", "--client", "192.0.2.1", "--seconds", "60", times=3)
    waiting.send_signal(signal.SIGINT)
    code, error = finish(waiting)
    assert code == 1 and "interrupted before any datagram of a matching connection arrived" in error and "60 s" not in error
    assert not (tmp_path / "none").exists()
    code, error = refused(server, "--client", "192.0.2.1", "-w", file)
    assert code == 2 and "exists" in error
    code, error = refused(server, "--client", "edge.test", "-w", tmp_path / "none")
    assert code == 1 and "client is \"edge.test\"" in error
    for order, status in (("{}", 400), ('{"connection": "xy"}', 400), ('{"client": "192.0.2.1", "bytes": 0}', 400), ("{", 400),
                          ('{"client": "192.0.2.1", "seconds": 3601}', 400), ('{"client": "192.0.2.1", "x": 1}', 400)):
        assert server.ask("/qlog", order)[0] == status, order


def test_a_reader_that_goes_or_does_not_read_ends_the_recording(make_lab, make_server) -> None:
    lab = make_lab()
    # What the kernel keeps for a reader is little, so that a recording has more.
    run_inside(lab.server_namespace, lambda: Path("/proc/sys/net/ipv4/tcp_wmem").write_text("4096 16384 65536"))
    server = make_server(lab, mode="udp", more={"admin": {"write_timeout": '"1s"'}})
    order = json.dumps({"client": lab.client["ipv4"], "seconds": 3600})

    def unread() -> socket.socket:
        taken = socket.socket()
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
        taken.settimeout(LIMIT)
        taken.connect(ADMIN)
        head = f"POST /qlog HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(order)}\r\n\r\n"
        taken.sendall((head + order).encode())
        return taken

    gone = run_inside(lab.server_namespace, unread)
    server.wait_log("qlog started")
    gone.close()
    server.wait_log("qlog ended")
    stuck = run_inside(lab.server_namespace, unread)
    server.wait_log("qlog started", 2)
    # One connection that stays: nothing but the reader's time can end the recording.
    words = [PEERS / "venv/bin/python", CLIENTS / "aioquic_tls.py", "-connect", address(lab.server["ipv4"])]
    words += ["-name", HOST, "-path", "/long.mp4", "-hold"]
    client = subprocess.Popen(lab.inside("client", *map(str, words)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert client.stdin and client.stdout
        client.stdout.readline()
        client.stdin.write("\n")
        client.stdin.flush()
        server.wait_log("qlog ended", 2)
        assert client.poll() is None and server.metrics().sum("connections") == 1
        client.stdin.close()
        assert json.loads(client.stdout.read())["status"] == 200
    finally:
        client.terminate()
        client.wait(LIMIT)
    stuck.close()
