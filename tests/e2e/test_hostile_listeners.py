"""Attacks on TCP listeners: the admin listener of a gateway, and those of a fan-out."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.fanout import FEED_PORT, TCP_PORT, descriptors
from harness.hostile import SERVER_PREFIX, Attack, Good, Outcome, beside, beside_gateway, go_first
from harness.lab import Lab
from harness.daemon import Daemon
from harness.server import ADMIN, Server, address

MIB = 1 << 20
# The admin listener and its handshakes keep no more than this of a few hundred connections.
GROWN = 32 * MIB
# What an attacker reports.
SEEN = {"connections": 100}


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """One lab for all."""
    made = Lab(f"e2e-listen-{os.getpid()}")
    yield made
    made.down()


def holds(server: Server, outcome: Outcome, before: int) -> None:
    """The good client was served as before, nothing is kept, nothing is complained of, and it ends in order."""
    print(outcome)
    assert not outcome.missing({}, SEEN), outcome
    assert not outcome.harms(), outcome
    assert outcome.grown <= GROWN, outcome
    server.wait_for("descriptors given back", lambda _: descriptors(server.process.pid) <= before + 8)
    server.stop()
    assert isinstance(server, Daemon)
    for word in ("ERROR", "panicked"):
        assert word not in server.log(), server.log()


@pytest.mark.parametrize("name", ["silent_connections", "slow_http", "slow_lines", "unread_pages", "long_heads", "hasty_connections"])
def test_the_door_of_the_operator(lab: Lab, make_server, certificates: Path, name: str) -> None:
    server = make_server(lab, prefix=SERVER_PREFIX, more={"admin": {"listen": f'"0.0.0.0:{ADMIN[1]}"'}})
    go_first(server.process.pid)
    before = descriptors(server.process.pid)

    def operator() -> None:
        assert server.ask("/healthz")[0] == 200
        assert server.ask("/metrics")[0] == 200

    connect = address(lab.server["ipv4"], ADMIN[1])
    outcome = beside_gateway(server, certificates, name, connect, operator, seen=SEEN)
    holds(server, outcome, before)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("ws", "silent_connections"), ("ws", "slow_http"), ("ws", "slow_lines"), ("ws", "long_heads"),
        ("tls", "silent_connections"), ("tls", "slow_lines"), ("tls", "slow_tls"), ("tcp", "slow_lines"),
        ("tcp", "hasty_connections"), ("ws", "hasty_connections"), ("tls", "hasty_connections"),
    ],
)
def test_the_listeners_of_subscribers(lab: Lab, make_fanout, certificates: Path, kind: str, name: str) -> None:
    host = lab.server["ipv4"]
    tls = ("--certificate", str(certificates / "cert.pem"), "--private-key", str(certificates / "key.pem"))
    ports = {"tcp": TCP_PORT, "tls": TCP_PORT + 1, "ws": TCP_PORT + 2}
    flags = [word for flag in ("tls", "ws") for word in (f"--{flag}", address(host, ports[flag]))]
    fanout = make_fanout(lab, "--tcp", address(host, TCP_PORT), *flags, *tls, prefix=SERVER_PREFIX)
    go_first(fanout.process.pid)
    before = descriptors(fanout.process.pid)
    subscriptions = address(host, TCP_PORT)
    outcome = beside(
        fanout,
        Good.of_fanout(lab, address(host, FEED_PORT), subscriptions),
        lambda: Attack(lab, subscriptions, "plain_connections", certificates),
        lambda: Attack(lab, address(host, ports[kind]), name, certificates),
        seen=SEEN,
    )
    holds(fanout, outcome, before)
