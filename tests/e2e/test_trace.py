"""`expressway trace`: requests of third-party clients followed through a running server."""

import json
import math
import os
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from harness import clients, perfetto
from harness.agent import NOBODY, UNPRIVILEGED
from harness.namespace import run_inside
from harness.paths import BINARY, HOST, LIMIT, PORT
from harness.server import ADMIN, Server, address

PATHS = ["/clip.mp4", "/small.txt"]

# What each request comes by, whatever the way of its packets.
STEPS = {"decrypt", "turn", "dispatch", "answer", "build", "flush", "body", "acknowledge", "whole"}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A site with a small file and one of some hundred packets."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "small.txt").write_text("small\n")
    (folder / "clip.mp4").write_bytes(os.urandom(300_000))
    return folder


def start(server: Server, *words: str | Path, times: int = 1) -> subprocess.Popen[str]:
    """A trace that has begun."""
    command = server.lab.inside("server", BINARY, "trace", *map(str, words))
    trace = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        server.wait_log("trace started", times)
    except BaseException:
        trace.kill()
        trace.wait()
        raise
    return trace


def finish(trace: subprocess.Popen[str]) -> dict[str, Any]:
    """The document of one that ends by itself, or was told to."""
    out, err = trace.communicate(timeout=LIMIT)
    assert trace.returncode == 0 and err == "", (trace.returncode, err)
    return json.loads(out)


def refused(server: Server, *words: str) -> tuple[int, str]:
    """The exit code and the error of a trace that does not begin."""
    command = server.lab.inside("server", BINARY, "trace", *words)
    ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert ended.stdout == "" and ended.stderr.count("\n") >= 1, ended
    return ended.returncode, ended.stderr


def steps(document: dict[str, Any], kind: str = "request_steps") -> dict[str, dict[str, Any]]:
    """Rows of the table by the names of their steps."""
    return {row["step"]: row for row in document[kind]}


def check_chrome(file: Path) -> list[dict[str, Any]]:
    """Holds a file to the rules of the Trace Event Format: what has to be there in events of each phase, spans that end
    within their parents, slices of a thread that do not cut each other. Returns the events."""
    events = json.loads(file.read_text())["traceEvents"]
    spans: dict[tuple[str, str], list[tuple[str, float]]] = {}
    slices: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in events:
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int) and isinstance(event["name"], str)
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name") and event["args"]["name"]
            continue
        assert isinstance(event["ts"], float) and event["cat"], event
        key = (event["cat"], event.get("id", ""))
        match event["ph"]:
            case "X":
                assert event["dur"] >= 0
                slices.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["dur"]))
            case "i":
                assert event["s"] == "t"
            case "b":
                assert event["id"]
                parents = spans.setdefault(key, [])
                assert not parents or parents[-1][1] <= event["ts"], event
                parents.append((event["name"], event["ts"]))
            case "e":
                name, began = spans[key].pop()
                assert name == event["name"] and began <= event["ts"], event
            case other:
                raise AssertionError(f"phase {other}")
    assert not any(spans.values()), "a span has no end"
    for thread in slices.values():
        thread.sort()
        for (one, duration), (other, _) in zip(thread, thread[1:], strict=False):
            # Microseconds as floats: a nanosecond is lost here and there.
            assert one + duration <= other + 0.01, "two slices of a thread overlap"
    return events


@contextmanager
def feed(server: Server, order: dict[str, Any]) -> Iterator[socket.socket]:
    """A trace as the admin listener tells it, unread."""
    body = json.dumps(order)
    head = f"POST /trace HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"

    def connect() -> socket.socket:
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(LIMIT)
        connection.connect(ADMIN)
        connection.sendall(f"{head}connection: close\r\n\r\n{body}".encode())
        return connection

    with run_inside(server.lab.server_namespace, connect) as connection:
        server.wait_log("trace started")
        yield connection


def lines(connection: socket.socket) -> list[dict[str, Any]]:
    """What a feed tells to its end."""
    raw = b""
    while piece := connection.recv(1 << 20):
        raw += piece
    head, _, body = raw.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200") and b"application/x-ndjson" in head, head
    text = b""
    while body:
        length, _, body = body.partition(b"\r\n")
        text, body = text + body[: int(length, 16)], body[int(length, 16) + 2 :]
    return [json.loads(line) for line in text.splitlines()]


def seconds_for(ask: Callable[[], object]) -> str:
    """How long a trace takes to see it asked more than once, however slow the machine is now."""
    began = time.monotonic()
    ask()
    return str(4 + math.ceil(4 * (time.monotonic() - began)))


def ask_until_over(trace: subprocess.Popen[str], ask: Callable[[], object]) -> None:
    """Asks again and again while a trace lasts, once at least."""
    ask()
    while trace.poll() is None:
        ask()


@pytest.mark.parametrize(
    ("mode", "client"), [("copy", "curl"), ("udp", "aioquic"), ("copy", "quicgo"), ("udp", "quicgo")]
)
def test_each_hop_of_a_request_is_seen(
    make_lab, make_server, certificates: Path, files: Path, tmp_path: Path, mode: str, client: str
) -> None:
    if client not in clients.CLIENT_NAMES:
        pytest.skip(f"{client} is not among the clients here")
    lab = make_lab()
    server = make_server(lab, mode=mode, root=files)
    connect = address(lab.server["ipv4"])
    chrome = tmp_path / "trace.json"
    ask = partial(clients.fetch, lab, client, connect, certificates, PATHS)
    trace = start(server, "--json", "--seconds", seconds_for(ask), "--request", "/clip", "--chrome", chrome)
    ask_until_over(trace, ask)
    document = finish(trace)
    assert document["ended"] and document["lost"] == 0 and document["left_out"] == 0, document
    assert document["requests"] >= 1 and document["connections"] >= 1
    assert set(steps(document)) >= STEPS | ({"receive", "complete"} if mode == "copy" else {"receive"}), document
    packets = steps(document, "packet_steps")
    assert {"datagram receive", "datagram decrypt", "burst build", "flush"} <= set(packets)
    assert mode != "copy" or "burst complete" in packets

    slowest = document["slowest"]
    assert slowest["request"].startswith("GET https://edge.test") and slowest["request"].endswith("/clip.mp4")
    assert slowest["client"].rsplit(":", 1)[0] == lab.client["ipv4"]
    assert (slowest["status"], slowest["source"]) == (200, "here")
    times = [hop["time"] for hop in slowest["hops"]]
    assert times == sorted(times) and slowest["duration"] == times[-1] - times[0]
    # A datagram may come by the kernel in any mode: the first ones do.
    assert slowest["in"] == "kernel socket" or mode == "copy" and " queue " in slowest["in"], slowest
    assert slowest["out"] == "kernel socket" or mode == "copy" and " queue " in slowest["out"], slowest
    # Whoever stamped it is told by the way that it came. The kernel's sockets begin to, on a busy machine, a while after they are
    # asked to (net_enable_timestamp leaves it to a kworker).
    by = [hop["by"] for hop in slowest["hops"] if hop["hop"] == "arrived"]
    assert by in ([["kernel"], []] if slowest["in"] == "kernel socket" else [["xdp"]]), slowest
    for row in document["request_steps"] + document["packet_steps"]:
        assert sum(bucket["count"] for bucket in row["buckets"]) == row["count"], row
        assert row["buckets"][-1]["le"] >= row["max"] and row["buckets"][0]["count"] > 0, row

    events = check_chrome(chrome)
    asked = {event["name"] for event in events if event["ph"] == "b" and event["name"].startswith("GET ")}
    assert {name.rsplit("/", 1)[1] for name in asked} == {"clip.mp4", "small.txt"}
    assert {event["name"] for event in events if event["ph"] == "X"} == {"datagram", "burst", "flush"}


def test_the_program_of_an_agent_stamps_for_its_client(make_lab, start_agent, make_server, readable: Path) -> None:
    lab = make_lab()
    rule = f'name = "edge"\nusers = [{NOBODY}]\nlisten = ["0.0.0.0:{PORT}"]\ninterfaces = ["server0"]\n'
    agent = start_agent(lab, rule)
    more = {"io": {"agent": f'"{agent.socket}"'}}
    server = make_server(lab, mode="copy", certificates=readable, prefix=UNPRIVILEGED, more=more)
    connect = address(lab.server["ipv4"])
    ask = partial(clients.fetch, lab, "quicgo", connect, readable, PATHS)
    for times in (1, 2):
        trace = start(server, "--json", "--seconds", seconds_for(ask), times=times)
        ask_until_over(trace, ask)
        document = finish(trace)
        assert set(steps(document)) >= STEPS | {"receive", "complete"}, document
    assert server.metrics().sum("rx_kernel_packets_total") == 0
    server.stop()


def curl(server: Server, certificates: Path, version: str, paths: list[str]) -> None:
    """Fetches files over TCP on one connection."""
    host = server.lab.server["ipv4"]
    words = ["curl", "-sS", f"--http{version}", "--cacert", certificates / "ca.pem", "--max-time", LIMIT]
    words += ["--connect-to", f"{HOST}:{PORT}:{host}:{PORT}"]
    for path in paths:
        words += ["-o", "/dev/null", f"https://{HOST}:{PORT}{path}"]
    server.lab.run("client", *map(str, words))


@pytest.mark.parametrize("version", ["1.1", "2"])
def test_each_hop_of_a_request_over_tcp_is_seen(
    make_lab, make_server, certificates: Path, files: Path, tmp_path: Path, version: str
) -> None:
    lab = make_lab()
    server = make_server(lab, mode="udp", root=files)
    server.wait_tcp([address(lab.server["ipv4"])])
    chrome = tmp_path / "trace.json"
    ask = partial(curl, server, certificates, version, [*PATHS, "/missing"])
    trace = start(server, "--json", "--seconds", seconds_for(ask), "--request", "/clip", "--chrome", chrome)
    ask_until_over(trace, ask)
    document = finish(trace)
    assert document["ended"] and document["lost"] == 0 and document["left_out"] == 0, document
    assert document["requests"] >= 3 and document["failed"] <= 1, document
    assert set(steps(document)) == {"decrypt", "turn", "dispatch", "answer", "build", "flush", "body"}, document
    slowest = document["slowest"]
    assert slowest["request"] == f"GET https://{HOST}:{PORT}/clip.mp4", slowest
    assert slowest["client"].rsplit(":", 1)[0] == lab.client["ipv4"] and slowest["connection"] == f"HTTP/{version[0]}"
    assert (slowest["status"], slowest["source"], slowest["bytes"], slowest["complete"]) == (200, "here", 300_000, True)
    assert (slowest["in"], slowest["out"]) == ("TCP", "TCP")
    times = [hop["time"] for hop in slowest["hops"]]
    assert times == sorted(times) and slowest["duration"] == times[-1] - times[0]
    events = check_chrome(chrome)
    asked = {event["name"] for event in events if event["ph"] == "b" and event["name"].startswith("GET ")}
    assert {name.rsplit("/", 1)[1] for name in asked} == {"clip.mp4", "small.txt", "missing"}


def test_perfetto_reads_the_file(
    make_lab, make_server, certificates: Path, files: Path, tmp_path: Path, open_browser
) -> None:
    lab = make_lab()
    server = make_server(lab, mode="copy", root=files)
    connect = address(lab.server["ipv4"])
    chrome = tmp_path / "trace.json"
    ask = partial(clients.fetch, lab, "quicgo", connect, certificates, PATHS)
    trace = start(server, "--json", "--seconds", seconds_for(ask), "--chrome", chrome)
    ask_until_over(trace, ask)
    finish(trace)
    events = check_chrome(chrome)
    browser = open_browser(lab)
    with perfetto.served(browser):
        page = perfetto.Perfetto(browser, chrome)
        assert page.errors() == []
        found = Counter(dict(page.query("SELECT name, COUNT(*) FROM slice GROUP BY name")))
        assert found == Counter(event["name"] for event in events if event["ph"] in ("X", "b", "i"))
        slices = page.query("SELECT ts, dur FROM slice JOIN thread_track ON track_id = thread_track.id WHERE dur > 0")
        assert sorted(slices) == sorted([round(event["ts"] * 1000), round(event["dur"] * 1000)] for event in events
                                        if event["ph"] == "X" and event["dur"] > 0)


def test_a_filter_sees_only_its_client_and_a_sample_only_some_requests(
    make_lab, make_server, certificates: Path, files: Path, tmp_path: Path
) -> None:
    lab = make_lab()
    listen = [address(lab.server["ipv4"]), address(lab.server["ipv6"])]
    server = make_server(lab, mode="copy", root=files, listen=listen)
    chrome = tmp_path / "trace.json"

    def fetch_both() -> None:
        for connect in listen:
            clients.fetch(lab, "quicgo", connect, certificates, PATHS)

    seconds = seconds_for(fetch_both)
    trace = start(server, "--json", "--seconds", seconds, "--client", lab.client["ipv6"], "--chrome", chrome)
    ask_until_over(trace, fetch_both)
    document = finish(trace)
    assert document["requests"] >= 1 and document["slowest"]["client"].startswith(f"[{lab.client['ipv6']}]:")
    events = check_chrome(chrome)
    threads = [event["args"]["name"] for event in events if event["name"] == "thread_name" and event["pid"] == 2]
    assert threads and all(name.startswith(f"[{lab.client['ipv6']}]:") for name in threads), threads
    remotes = {event["args"]["remote"] for event in events if "remote" in event["args"]}
    assert remotes and all(remote.startswith(f"[{lab.client['ipv6']}]:") for remote in remotes), remotes

    trace = start(server, "--json", "--seconds", "60", "--sample", "1000000", times=2)
    for _ in range(3):
        fetch_both()
    trace.send_signal(signal.SIGINT)
    document = finish(trace)
    # The first, on the one worker.
    assert document["requests"] + document["unfinished"] <= 1, document


def test_a_connection_is_followed_by_its_id_from_the_middle(
    make_lab, make_server, certificates: Path, files: Path
) -> None:
    lab = make_lab()
    server = make_server(lab, mode="udp", root=files)
    connect = address(lab.server["ipv4"])
    first = start(server, "--json", "--seconds", "60")
    client = clients.start(lab, connect, certificates, ["/clip.mp4"], "-pause")
    assert client.stdout and client.stdout.readline() == "paused\n"
    server.wait_for("the request counted", lambda m: m.sum("requests_total") >= 1)
    first.send_signal(signal.SIGINT)
    document = finish(first)
    assert document["slowest"], document
    server.wait_log("trace ended")
    second = start(server, "--json", "--seconds", "60", "--connection", document["slowest"]["connection"][:16], times=2)
    # Another client is none of its.
    clients.fetch(lab, "quicgo", connect, certificates, ["/small.txt"])
    report = clients.finish(client, "\n")
    assert not report.get("error"), report
    second.send_signal(signal.SIGINT)
    followed = finish(second)
    assert followed["connections"] == 1 and followed["slowest"]["request"].endswith("/clip.mp4"), followed
    assert followed["slowest"]["client"] == document["slowest"]["client"]


def test_a_slow_reader_holds_nobody_up_and_is_told_its_losses(
    make_lab, make_server, certificates: Path, files: Path
) -> None:
    lab = make_lab()
    # It reads nothing for as long as the transfers take, on however slow a machine.
    server = make_server(lab, mode="copy", root=files, more={"admin": {"write_timeout": '"5m"'}})
    with (files / "big.bin").open("wb") as big:
        big.truncate(256 << 20)
    connect = address(lab.server["ipv4"])
    with feed(server, {"seconds": 30}) as connection:
        accepted = server.metrics().sum("admin_accepted_total")
        bursts = 0
        # Three events a burst at least: more than the ring and the socket hold.
        while bursts < 40_000:
            (answer,) = clients.fetch(lab, "quicgo", connect, certificates, ["/big.bin"])
            assert (answer.status, answer.bytes) == (200, 256 << 20)
            bursts = server.metrics().sum("bursts_sent_total")
        assert server.metrics().sum("admin_accepted_total") > accepted, "the listener answers others meanwhile"
        told = lines(connection)
    assert told[0]["trace"] == "begin" and told[-1]["trace"] == "end"
    recorded = [line for line in told if "hop" in line]
    assert told[-1]["events"] == len(recorded) and told[-1]["lost"] > 0, told[-1]
    times = [line["time"] for line in recorded]
    assert times == sorted(times), "one worker: one order, whatever is missing"


def test_a_reader_that_is_killed_ends_the_trace_and_others_wait_for_its_end(make_lab, make_server, files: Path) -> None:
    server = make_server(make_lab(), mode="udp", root=files)
    trace = start(server, "--seconds", "3600")
    code, error = refused(server)
    assert (code, "another trace is running" in error) == (1, True), error
    trace.kill()
    trace.communicate()
    server.wait_log("trace ended")
    trace = start(server, "--seconds", "1", "--json", times=2)
    document = finish(trace)
    assert document["ended"] and (document["requests"], document["slowest"]) == (0, None)


def test_a_server_that_ends_is_told_and_what_was_seen_is_shown(make_lab, make_server, files: Path) -> None:
    for _ in range(5):
        server = make_server(make_lab(), mode="udp", root=files)
        trace = start(server, "--seconds", "3600", "--json")
        server.kill()
        out, err = trace.communicate(timeout=LIMIT)
        assert trace.returncode == 1 and err.count("\n") == 1, err
        # On a busy machine it may end before it has answered: then there is no trace yet.
        if "the process closed the connection" not in err:
            break
    assert "the trace was cut short" in err, err
    assert json.loads(out)["ended"] is False


def test_what_is_wrong_is_said_in_a_line(make_lab, make_server, files: Path, tmp_path: Path) -> None:
    server = make_server(make_lab(), mode="udp", root=files)
    nobody = refused(server, "--admin", "127.0.0.1:1")
    assert nobody[0] == 1 and "--admin 127.0.0.1:1: " in nobody[1] and "check that the process is running" in nobody[1]
    for words, says in [
        (["--client", "edge.test"], "must be an address"),
        (["--client", "192.0.2.1:99999"], "must be an address"),
        (["--connection", "xyz"], "hexadecimal"),
        (["--seconds", "0"], "--seconds"),
        (["--sample", "0"], "--sample"),
        (["--admin", "here"], "--admin"),
    ]:
        code, error = refused(server, *words)
        assert code == 2 and says in error, (words, code, error)
    code, error = refused(server, "--chrome", str(tmp_path / "none" / "trace.json"))
    assert code == 1 and "none/trace.json" in error, error
    # Nobody turns it on by a link: only an order in JSON does.
    assert server.ask("/trace")[0] == 404
    status, problem = server.ask("/trace", '{"second": 1}')
    assert status == 400 and "unknown field" in problem
    assert server.ask("/trace", "")[0] == 400


def test_a_process_that_has_no_traces_is_told_apart(make_lab, make_fanout) -> None:
    lab = make_lab()
    make_fanout(lab)
    command = lab.inside("server", BINARY, "trace")
    ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert ended.returncode == 1 and ended.stderr.count("\n") == 1, ended
    assert "has no /trace: the process does not offer it, or is an older version" in ended.stderr
