"""WebRTC in `expressway relay` with pion: it publishes, plays and talks on data channels, and checks all that it is given."""

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from harness.lab import Lab
from harness.paths import LIMIT, PEERS
from harness.webrtc import HTTP, MEDIA

# Of one run of a crowd, in seconds: all of it takes about ten.
LONG = 4 * LIMIT


def room(lab: Lab) -> str:
    """A room of sessions, whose publisher is heard on data channels."""
    host = lab.server["ipv4"]
    return "\n".join(["workers = 2", "[webrtc]", f'listen = ["{host}:{MEDIA}"]', f'http = "{host}:{HTTP}"', "[[room]]", 'name = "studio"',
                      "whip = true", "whep = true", 'data = "publisher"', ""])


@pytest.fixture
def start_pion() -> Iterator[Callable[..., subprocess.Popen]]:
    """Starts peers; at the end none is left."""
    running: list[subprocess.Popen] = []

    def start(lab: Lab, what: str, *more: object) -> subprocess.Popen:
        command = [PEERS / "pion", what, f"http://{lab.server['ipv4']}:{HTTP}", "studio", *map(str, more)]
        running.append(subprocess.Popen(lab.inside("client", *command), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True))
        return running[-1]

    yield start
    for process in running:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=LIMIT)


def result(process: subprocess.Popen, timeout: float = LIMIT) -> dict[str, Any]:
    """What came of it, once its standard input ends."""
    out, errors = process.communicate(timeout=timeout)
    assert process.returncode == 0, errors
    told = json.loads(out.splitlines()[-1])
    assert told["wrong"] == 0, errors
    return told


@pytest.mark.parametrize("mode", ["copy", "udp"])
def test_two_hundred_come_and_go_and_all_that_they_are_given_is_right(make_lab, make_relay, start_pion, mode: str) -> None:
    lab = make_lab()
    relay = make_relay(lab, room(lab), "--io", mode)
    told = result(start_pion(lab, "crowd", 100, 200), LONG)
    assert (told["sessions"], told["connected"], told["refused"]) == (200, 200, 0), told
    assert told["packets"] > 200 and told["messages"] > 200, told
    # What the machine is too slow for is asked for again; a little may come too late for who leaves.
    assert told["missing"] * 100 <= told["packets"], told
    relay.wait_metric("relay_webrtc_connected_total", 201)
    metrics = relay.metrics()
    assert metrics.sum("relay_webrtc_ended_failed_total") == 0
    assert metrics.sum("relay_demux_dropped_handover_total") == 0


def test_one_that_never_reads_holds_nobody_up(make_lab, make_relay, start_pion) -> None:
    lab = make_lab()
    relay = make_relay(lab, room(lab), "--io", "udp")
    publisher = start_pion(lab, "publish")
    assert json.loads(publisher.stdout.readline()) == {"publishing": True}
    deaf = start_pion(lab, "play")
    relay.wait_metric("relay_webrtc_connected_total", 2)
    deaf.send_signal(signal.SIGSTOP)
    reads = start_pion(lab, "play")
    relay.wait_metric("relay_webrtc_connected_total", 3)
    # It is there for as long as it takes until the other is given up.
    relay.wait_metric("relay_webrtc_ended_lost_total", 1)
    told = result(reads)
    assert told["packets"] > 200 and told["missing"] == 0, told
    # The publisher vanishes; another may come.
    publisher.kill()
    relay.wait_metric("relay_webrtc_ended_lost_total", 2)
    again = start_pion(lab, "publish")
    assert json.loads(again.stdout.readline()) == {"publishing": True}
