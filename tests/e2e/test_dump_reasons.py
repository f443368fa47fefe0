"""Why a program of ours drops, as `expressway dump` and `top` tell it: of a filter that is there, is changed, and comes again."""

import json
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import kernel, links
from harness.captures import Dump, dumps
from harness.guard import text
from harness.lab import Lab
from harness.namespace import udp_socket
from harness.paths import LIMIT
from harness.top import Top, dropped, tops

PORT, COUNT = 7000, 25
# Asked for until everybody is known to look; not counted.
WARM_UP = 7001
RULE = f"""[[rule]]
name = "port"
protocol = "udp"
destination_port = "{PORT}-{WARM_UP}"
action = "drop"
"""


def send(lab: Lab, port: int, count: int) -> None:
    """Datagrams to the server, which nobody takes."""
    with udp_socket(lab.client_namespace, socket.AF_INET) as sender:
        for number in range(count):
            sender.sendto(number.to_bytes(4, "big"), (lab.server["ipv4"], port))


def shown(dump: Dump, port: int, since: int) -> list[tuple[str | None, str | None]]:
    """Verdict and reason of the packets to a port that it has shown since."""
    found = [line for line in map(json.loads, dump.lines()[since:]) if line["destination_port"] == port]
    return [(line.get("verdict"), line.get("dropped")) for line in found]


def warm(lab: Lab, dump: Dump, top: Top, reason: str) -> None:
    """Sends until both have seen a drop for a reason."""
    since, before = len(dump.lines()), dropped(top.last(), "xdp", reason)
    deadline = time.monotonic() + LIMIT
    while ("drop", reason) not in shown(dump, WARM_UP, since) or dropped(top.last(), "xdp", reason) <= before:
        assert time.monotonic() < deadline, f"{dump.lines()}\n{dump.log()}"
        send(lab, WARM_UP, 1)
        time.sleep(0.5)


def tells(lab: Lab, dump: Dump, top: Top, reason: str) -> None:
    """Each packet is told with the reason by both."""
    since, before = len(dump.lines()), dropped(top.last(), "xdp", reason)
    send(lab, PORT, COUNT)
    top.wait_for(lambda document: dropped(document, "xdp", reason) >= before + COUNT, reason)
    deadline = time.monotonic() + LIMIT
    while len(found := shown(dump, PORT, since)) < COUNT:
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
    assert found == [("drop", reason)] * COUNT


@pytest.fixture
def make_top(make_lab, tmp_path: Path) -> Iterator[Callable[..., Top]]:
    """Ended before the labs go, whatever becomes of the test."""
    with tops(tmp_path) as make:
        yield make


@pytest.fixture
def make_dump(make_lab, tmp_path: Path) -> Iterator[Callable[..., Dump]]:
    """As above."""
    with dumps(tmp_path) as make:
        yield make


def test_a_filters_drops_have_its_reasons(make_lab, make_guard, make_top, make_dump) -> None:
    lab = make_lab()
    blocked = text(f'block = ["{lab.client["ipv4"]}"]')
    # The neighbour is known for good: the filter takes what the client would answer.
    lab.run("client", "ping", "-c1", lab.server["ipv4"])
    guard = make_guard(lab, blocked)
    # What one of them has read is there for the other.
    top = make_top(lab, links.SERVER)
    top.needs_tracing()
    dump = make_dump(lab, "server", "-i", links.SERVER, "--json", f"udp dst port {PORT} or udp dst port {WARM_UP}")
    if dump.is_refused():
        kernel.lacks("this kernel refuses programs at entry and exit of others")
    warm(lab, dump, top, "blocked")
    tells(lab, dump, top, "blocked")
    guard.reload(text(RULE), "configuration reloaded")
    warm(lab, dump, top, "rule")
    tells(lab, dump, top, "rule")
    # Another program, with another map.
    guard.stop()
    again = make_guard(lab, blocked)
    warm(lab, dump, top, "blocked")
    tells(lab, dump, top, "blocked")
    found = {one["reason"] for one in top.last()["drops"] if one["by"] == "xdp"}
    assert found == {"blocked", "rule"}
    again.stop()
