"""Attacks on the doors of `relay`, Media over QUIC, WebTransport and WHIP, each beside a room of Media over QUIC that goes on.

What holds is what `test_hostile.py` says of `serve`.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from harness.hostile import SERVER_PREFIX, Attack, Good, beside, go_first
from harness.lab import Lab
from harness.moq import PORT, keys, room
from harness.server import address

# Fixtures.
__all__ = ["keys"]

MIB = 1 << 20
HTTP, MEDIA = 8080, 3478
TOO_MANY, NO_SETUP = "closed application 0x3", "closed application 0x11"


@dataclass(frozen=True)
class Case:
    """An attack, and what has to be seen of it."""

    name: str
    moved: dict[str, int] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)
    # How far the process may grow.
    grown: int = 48 * MIB
    port: int = PORT

    def __str__(self) -> str:
        return f"{self.name}-{self.port}"


CASES = [
    Case("moq_beginnings", {"relay_moq_sessions_total": 8}, {"streams": 1000}),
    Case("moq_large_beginnings", {"relay_moq_sessions_total": 8}, {TOO_MANY: 2}),
    Case("moq_no_setup", {}, {"streams": 500}),
    Case("moq_questions", {"relay_moq_refused_not_found_total": 500}, {"streams": 1000}),
    Case("webtransport_beginnings", {}, {"streams": 500}),
    Case("silent_connections", seen={"connections": 50}, port=HTTP),
    Case("slow_http", seen={"connections": 50}, port=HTTP),
    Case("long_heads", seen={"connections": 50}, port=HTTP),
    Case("hasty_connections", seen={"connections": 50}, port=HTTP),
]


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """One lab for all."""
    made = Lab(f"e2e-relay-{os.getpid()}")
    yield made
    made.down()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_room_beside(lab: Lab, make_relay, keys: Path, case: Case) -> None:
    host = lab.server["ipv4"]
    webrtc = f'[webrtc]\nlisten = ["{host}:{MEDIA}"]\nhttp = "{host}:{HTTP}"\n'
    relay = make_relay(lab, room(lab, keys, head=webrtc), "--io", "udp", prefix=SERVER_PREFIX)
    go_first(relay.process.pid)
    outcome = beside(
        relay,
        Good.of_room(lab, address(host, PORT)),
        lambda: Attack(lab, address(host, PORT), "moq_plain", keys),
        lambda: Attack(lab, address(host, case.port), case.name, keys),
        moved=case.moved,
        seen=case.seen,
    )
    print(f"{case}: {outcome}")
    assert not outcome.missing(case.moved, case.seen), f"{outcome.missing(case.moved, case.seen)}; {outcome}"
    assert outcome.grown <= case.grown, outcome
    assert outcome.grown <= outcome.explained(), outcome
    assert outcome.long_turns() <= 0.02, outcome
    assert not outcome.harms(), outcome
    for word in ("ERROR", "panicked"):
        assert word not in relay.log(), relay.log()
