"""Attacks on `serve` by clients that may send whatever they like, each beside a good client.

The good client's p99 may at most double (see `harness.hostile`), the attack has to be seen in the metrics and is
answered as it should be, the process grows by no more than its configuration says, and ends well.
"""

import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from harness import clients, origins
from harness.hostile import CONNECTION, SERVER_PREFIX, SLACK, Attack, beside_gateway, cpu_seconds, go_first, resident
from harness.lab import Lab
from harness.namespace import run_inside
from harness.server import Server, address


MIB = 1 << 20
EXCESSIVE_LOAD, VIOLATION, ID_LIMIT, KEY_UPDATE = (
    "closed application 0x107", "closed transport 0xa", "closed transport 0x9", "closed transport 0xe"
)


@dataclass(frozen=True)
class Case:
    """An attack, and what has to be seen of it."""

    name: str
    # What the server's counters went up by at least.
    moved: dict[str, int] = field(default_factory=dict)
    # What the attacker's report has at least.
    seen: dict[str, int] = field(default_factory=dict)
    quic: dict[str, str] = field(default_factory=dict)
    # How far the process may grow.
    grown: int = 64 * MIB

    def __str__(self) -> str:
        return self.name + "".join(f"-{key}" for key in self.quic)


STREAMS = [
    Case("never_read", {"requests_total": 500}, {"requests": 500}),
    Case("shut_window", {"requests_total": 500}, {"requests": 500}),
    Case("byte_a_second", {"requests_total": 500}, {"windows": 100}),
    Case("one_byte_windows", {"requests_total": 200}, {"windows": 20}),
    Case("rapid_reset", {"refused_rapid_reset_total": 1}, {EXCESSIVE_LOAD: 1, "streams": 500}),
    Case("reset_unopened", {"refused_rapid_reset_total": 1}, {EXCESSIVE_LOAD: 1, "streams": 500}),
    Case("rapid_stop", {"refused_rapid_reset_total": 1, "responses_cancelled_total": 500}, {EXCESSIVE_LOAD: 1}),
    Case("no_request", {"refused_rapid_reset_total": 1, "refused_malformed_total": 500}, {EXCESSIVE_LOAD: 1, "reset 0x10d": 100}),
    Case("half_requests", seen={"bytes": 20}),
    Case("priorities", {"requests_total": 64}, {"updates": 1000}),
    Case("reserved_streams", {"datagrams_received_total": 100}, {"streams": 1000, "max_streams_uni": 5}),
    Case("costly_requests", {"requests_total": 22}, {"answered": 33}),
    Case("empty_frames", {"requests_total": 2}, {"frames": 10_000}),
    Case("quicgo half-windows", {"requests_total": 100}, {"requests": 100}),
    Case("quicgo cancelled", {"refused_rapid_reset_total": 1}, {EXCESSIVE_LOAD: 1, "streams": 500}),
    Case("quicgo endless-bodies", {"requests_total": 1}, {"stopped 0x100": 1}),
]

TRANSPORT = [
    Case("acks_of_nothing", {"connections_protocol_error_total": 5}, {VIOLATION: 5}),
    Case("ack_ranges", {"requests_total": 1}, {"hits": 10}),
    Case("path_challenges", {"datagrams_received_total": 100}, {"path_response": 10}),
    Case("connection_ids", {"connections_protocol_error_total": 1}, {"hits": 10}),
    Case("too_many_connection_ids", {"connections_protocol_error_total": 5}, {ID_LIMIT: 5}),
    Case("retired_connection_ids", {}, {"retired": 20}),
    Case("key_updates", {"connections_protocol_error_total": 1}, {KEY_UPDATE: 1}),
    Case("patient_key_updates", {}, {"updates": 10}),
    Case("empty_packets", {"datagrams_received_total": 100}, {"hits": 2}),
    Case("crypto_gaps", {"datagrams_received_total": 20}, {"hits": 10}),
    Case("stream_gaps", {"datagrams_received_total": 20}, {"gaps": 6000}),
    Case("wandering", {"paths_new_total": 50}, {"ports": 50}),
    Case("challenged_elsewhere", {"paths_new_total": 20}, {"ports": 40, "answers": 20}),
    Case("hung_up", {"responses_cancelled_total": 50}, {"hits": 5}),
    Case("vanished", {"requests_total": 100}, {"hits": 5}),
    Case("quicgo new-networks", {"paths_new_total": 5}, {"probed": 5}),
    Case("quicgo left-alone", {"connections_established_total": 5}, {"connections": 5}),
]

OVER_TCP = [
    Case("tcp_rapid_resets", {"tcp_refused_total": 5}, {"closed": 5}),
    Case("tcp_continuations", {"tcp_refused_total": 5}, {"closed": 5}),
    Case("tcp_pings", {"tcp_refused_total": 1}, {"closed": 1}),
    Case("tcp_slow_heads", {"tcp_refused_total": 5}, {"connections": 50}),
    Case("tcp_unread", {"tcp_requests_total": 50}, {"connections": 50}),
    Case("tcp_parts", {"tcp_refused_total": 5}, {"connections": 50}),
]

FIRST_PACKETS = [
    Case("half_open", {"connections_accepted_total": 100}, {"initials": 100}),
    Case("half_open", {"retries_sent_total": 100}, {"initials": 100}, {"retry": '"always"'}),
    Case("spoofed", {"connections_accepted_total": 100}, {"initials": 100}),
    Case("spoofed", {"retries_sent_total": 100}, {"initials": 100}, {"retry": '"always"'}),
    Case("replayed_retries", {"refused_invalid_token_total": 50, "retries_validated_total": 20}, {"from elsewhere": 20}, {"retry": '"always"'}),
    Case("foreign_tokens", {"connections_accepted_total": 50}, {"initials": 100}),
    Case("other_versions", {"version_negotiations_sent_total": 100}, {"datagrams": 100}),
    Case("garbage", {"dropped_bad_header_total": 10, "dropped_small_initial_total": 10, "dropped_short_cid_total": 10, "dropped_bad_initial_total": 10}, {"datagrams": 100}),
    Case("reversed_hello", {"connections_established_total": 5}, {"handshakes": 5}),
    Case("gapped_hello", {"connections_accepted_total": 5}, {"hits": 5}),
    Case("endless_hello", {"connections_protocol_error_total": 5}, {VIOLATION: 5}),
    Case("pinged_hello", {"connections_accepted_total": 50}, {"initials": 200}),
]


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """One lab for all. What the server sends to forged addresses goes to the client's namespace, which drops it."""
    made = Lab(f"e2e-hostile-{os.getpid()}")
    made.run("server", "ip", "route", "add", "198.18.0.0/15", "via", made.client["ipv4"])
    yield made
    made.down()


def started(lab: Lab, make_server, quic: dict[str, str]) -> Server:
    """A server whose worker has a core of its own, and little memory for what clients leave behind."""
    more = {
        "quic": {"idle_timeout": '"120s"', "send_window": '"256KiB"', "max_connections": "5000", **quic},
        "files": {"cache": '"16MiB"'},
        "tcp": {"header_timeout": '"500ms"'},
    }
    server = make_server(lab, prefix=SERVER_PREFIX, more=more)
    go_first(server.process.pid)
    return server


def survived(server: Server) -> None:
    """It runs, has nothing to complain of, and ends in order."""
    assert server.process.poll() is None, server.log()
    server.stop()
    for word in ("ERROR", "panicked"):
        assert word not in server.log(), server.log()


@pytest.mark.parametrize("case", [*STREAMS, *TRANSPORT, *FIRST_PACKETS, *OVER_TCP], ids=str)
def test_a_good_client_beside(lab: Lab, make_server, certificates: Path, case: Case) -> None:
    server = started(lab, make_server, case.quic)
    outcome = beside_gateway(server, certificates, case.name, moved=case.moved, seen=case.seen)
    print(f"{case}: {outcome}")
    assert not outcome.missing(case.moved, case.seen), f"{outcome.missing(case.moved, case.seen)}; {outcome}"
    ours = [what for what in outcome.report if what.startswith("closed by the client")]
    assert not ours, f"the attacker broke off: {outcome}"
    assert outcome.grown <= case.grown, outcome
    assert outcome.grown <= outcome.explained(), outcome
    assert outcome.long_turns() <= 0.02, outcome
    if case in OVER_TCP:
        assert outcome.moved("tcp_turn_seconds_count") > 0
        assert outcome.long_turns("tcp_turn_seconds") <= 0.02, outcome
    assert not outcome.harms(), outcome
    survived(server)


# Names of requests in tests/peers/hostile/streams.py, each of which may cost so many times what a plain one does. All of it is read,
# 30 KB in place of 50 bytes, and ranges are 200 answers.
COSTLY = {
    **dict.fromkeys(("if-none-match", "if-match", "labels", "segments", "dots", "encoded-dots", "cookies"), 20),
    **dict.fromkeys(("accept-encoding", "priority", "fields"), 20),
    "ranges": 100,
}


def cost(server: Server, certificates: Path, name: str) -> float:
    """Seconds of the server's CPU for each request of an attack."""
    spent, before = cpu_seconds(server.process.pid), server.metrics().sum("requests_total")
    attack = Attack(server.lab, address(server.lab.server["ipv4"]), name, certificates)
    server.wait_for("requests", lambda m: m.sum("requests_total") >= before + 200)
    attack.stop()
    return (cpu_seconds(server.process.pid) - spent) / (server.metrics().sum("requests_total") - before)


def test_what_costly_requests_cost(lab: Lab, make_server, certificates: Path) -> None:
    server = started(lab, make_server, {})
    cost(server, certificates, "plain")
    plain = cost(server, certificates, "plain")
    found = {name: cost(server, certificates, f"costly_requests {name}") for name in COSTLY}
    print(f"plain {plain * 1e6:.0f} µs; " + ", ".join(f"{name} {spent * 1e6:.0f} µs" for name, spent in found.items()))
    dear = {name: spent / plain for name, spent in found.items() if spent > COSTLY[name] * plain}
    assert not dear, (plain, dear)
    survived(server)


# Each takes something several times within `response_timeout`, and less than `response_rate` in all.
SLOW = {
    "byte_a_second": ("quic", '"240B"', "responses_timed_out_total", {}),
    "tcp_sips": ("tcp", '"1MiB"', "tcp_refused_total", {"reason": "response-timeout"}),
}


@pytest.mark.parametrize("name", SLOW)
def test_who_takes_a_little_now_and_then_holds_no_response(lab: Lab, make_server, certificates: Path, name: str) -> None:
    section, rate, metric, labels = SLOW[name]
    server = make_server(lab, more={section: {"response_timeout": '"3s"', "response_rate": rate}})
    attack = Attack(lab, address(lab.server["ipv4"]), name, certificates)
    server.wait_for("ends of responses", lambda m: m.sum(metric, **labels) >= 20)
    report = attack.stop()
    print(report)
    assert report["requests"] >= 20 and report.get("windows", 0) + report.get("sips", 0) >= 5, report
    if section == "quic":
        assert report["reset 0x10c"] > 0, report
    (answer,) = clients.fetch(lab, "quicgo", address(lab.server["ipv4"]), certificates, ["/small.txt"])
    assert answer.status == 200
    survived(server)


def test_data_without_its_beginning_is_counted_and_not_kept_for_long(lab: Lab, make_server, certificates: Path) -> None:
    server = make_server(lab, more={"quic": {"missing_timeout": '"2s"'}})
    attack = Attack(lab, address(lab.server["ipv4"]), "stream_gaps", certificates)
    server.wait_for("what it says that it holds", lambda m: m.sum("request_bytes") >= 500_000)
    server.wait_for("ends of connections", lambda m: m.sum("refused_received_timeout_total") >= 2)
    report = attack.stop()
    print(report)
    assert report[EXCESSIVE_LOAD] >= 1, report
    (answer,) = clients.fetch(lab, "quicgo", address(lab.server["ipv4"]), certificates, ["/small.txt"])
    assert answer.status == 200
    survived(server)


@pytest.mark.parametrize("name", ["slow_bodies"])
def test_who_sends_a_little_now_and_then_holds_no_request_of_an_origin(lab: Lab, make_server, certificates: Path, name: str) -> None:
    port = 8001
    site = f'origin = "app"\n[[origin]]\nname = "app"\nservers = ["http://127.0.0.1:{port}"]\nmax_requests = 64\n'
    more = {"quic": {"request_timeout": '"3s"', "request_rate": '"240B"'}}
    with origins.telling(lab, port):
        server = make_server(lab, root=None, site=site, more=more)
        attack = Attack(lab, address(lab.server["ipv4"]), name, certificates)
        try:
            server.wait_for("all requests that the origin may have", lambda m: m.sum("requests_active") >= 60)
            server.wait_for("ends of requests", lambda m: m.sum("refused_request_timeout_total") >= 60)
        finally:
            report = attack.stop()
        print(report)
        assert report["reset 0x10c"] + report.get("stopped 0x10c", 0) >= 60 and report["bytes"] >= 60 * 3, report
        server.wait_for("room", lambda m: m.sum("requests_active") == 0)
        (reply,) = origins.ask(lab, certificates, [{"path": "/next"}])
        assert reply.status == 200
        survived(server)


@pytest.mark.parametrize("name", ["tcp_unread_bodies"])
def test_bodies_over_tcp_that_nobody_reads_are_counted(lab: Lab, make_server, certificates: Path, name: str) -> None:
    port, many = 8002, 100
    # All requests but one wait for its connection, and that one for an answer.
    site = f'origin = "app"\n[[origin]]\nname = "app"\nservers = ["http://127.0.0.1:{port}"]\nmax_connections = 1\n'
    with run_inside(lab.server_namespace, lambda: socket.create_server(("127.0.0.1", port))):
        server = make_server(lab, root=None, site=site)
        pid, before = server.process.pid, server.metrics().sum("memory_bytes")
        held = resident(pid)
        attack = Attack(lab, address(lab.server["ipv4"]), name, certificates)
        try:
            server.wait_for("connections", lambda m: m.sum("tcp_connections") >= many)
            # What a pipe takes is a half; HTTP/2 has the other.
            server.wait_for("bodies", lambda m: m.sum("memory_bytes") - before >= many * 220_000)
            grown, during = resident(pid) - held, server.metrics()
        finally:
            report = attack.stop()
        counted, connections = during.sum("memory_bytes") - before, during.sum("tcp_connections")
        print(f"grown {grown}, counted {counted}, {connections} connections, {report}")
        assert grown <= int(1.2 * counted) + connections * CONNECTION + SLACK
        assert during.sum("tcp_request_bytes") >= many * 220_000
        server.wait_for("nothing", lambda m: m.sum("tcp_connections") == 0 and m.sum("memory_bytes") - before < 1 << 20)
        survived(server)
