"""Everything at once, for as long as it is told: clients of all protocols whose every byte is hashed, hostile ones among them, reloads,
upgrades, links that bounce, an origin that fails, a fan-out and a relay. `make soak` has it take hours, the other tests have it take
half a minute.

EXPRESSWAY_SOAK_MINUTES says how long, EXPRESSWAY_SOAK_SEED what chance is made of, EXPRESSWAY_SOAK_SAMPLES into which file goes
what the processes hold.
"""

import contextlib
import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import clients, links, origins
from harness.fanout import FEED_PORT, TCP_PORT
from harness.hostile import Attack
from harness.lab import Lab
from harness.paths import CLIENTS, CLIP, LONG_CLIP, PEERS
from harness.rtp import Socket, packets
from harness.server import Server, address
from harness.soak import Actor, Drift
from harness.transfer import download, loop
from harness.upgrade import Succession, succession

MINUTES = float(os.environ.get("EXPRESSWAY_SOAK_MINUTES", "0.5"))
SEED = int(os.environ.get("EXPRESSWAY_SOAK_SEED", "0")) or time.time_ns() % 1_000_000

# What old processes get to end what they have, and what the server must not run out of meanwhile.
DRAIN = {"server": {"upgrade_drain": '"20s"', "drain": '"20s"'}, "quic": {"max_connections": "5000"}}

# Where the origin of the cache is.
ORIGIN = 8001

# What is answered while it is away, and what ends an answer in whose midst it goes away (RFC 9114, section 8.1).
AWAY = (502, 503, 504)
INTERNAL_ERROR = 0x102

ATTACKS = [
    "never_read", "byte_a_second", "one_byte_windows", "rapid_reset", "rapid_stop", "half_requests", "priorities", "costly_requests",
    "acks_of_nothing", "path_challenges", "connection_ids", "wandering", "vanished", "half_open", "garbage", "gapped_hello",
    "tcp_rapid_resets", "tcp_continuations", "tcp_slow_heads", "tcp_unread",
]

# Rounds for each upgrade, so that processes get older than that, too.
UPGRADE_EVERY = 3


class Edge:
    """A server in a lab of its own, and what is done to it."""

    def __init__(self, server: Server, processes: Succession, certificates: Path) -> None:
        self.server, self.processes, self.certificates = server, processes, certificates
        self.lab, self.connect = server.lab, address(server.lab.server["ipv4"])
        self.reloads = 0

    def reload(self) -> None:
        """SIGHUP, some of them."""
        for _ in range(3):
            os.kill(self.processes.pids[-1], signal.SIGHUP)
            self.reloads += 1
            time.sleep(0.05)
        assert self.server.ask("/healthz")[0] == 200, self.server.log()

    def upgrade(self) -> None:
        """The binary on disk takes over."""
        self.processes.upgrade()
        # Older ones than these are ended before their time.
        while sum(not old["has_ended"] for old in self.processes.generations()["older"]) >= 3:
            time.sleep(0.1)

    def bounce(self) -> None:
        """The link goes away for a moment."""
        links.ip(self.lab, "server", f"link set {links.SERVER} down")
        time.sleep(0.2)
        links.ip(self.lab, "server", f"link set {links.SERVER} up")
        # What is sent before there is a route again is lost, which is no harm.
        time.sleep(1)

    def attack(self, name: str) -> None:
        """A hostile client for a moment."""
        under_way = Attack(self.lab, self.connect, name, self.certificates)
        try:
            time.sleep(2)
            under_way.stop()
        finally:
            under_way.end()


def roam(edge: Edge) -> Callable[[int], None]:
    """A download whose client changes its port all the time."""
    wanted = clients.sha256(LONG_CLIP)

    def work(_: int) -> None:
        report = clients.report(edge.lab, edge.connect, edge.certificates, ["/long.mp4"], "-rebind-every", "5000000")
        assert not report.get("error"), f"{report}\n{edge.server.log()}"
        assert [answer["sha256"] for answer in report["responses"]] == [wanted], report

    return work


def ranges(edge: Edge, chance: random.Random) -> Callable[[int], None]:
    """Parts of a file by two clients in turn."""
    size = CLIP.stat().st_size

    def work(done: int) -> None:
        first = chance.randrange(size - 1)
        last = chance.randrange(first, size)
        name = ("aioquic", "quicgo")[done % 2]
        try:
            whole, part = clients.fetch(edge.lab, name, edge.connect, edge.certificates, ["/clip.mp4"], [f"{first}-{last}"])
        except AssertionError as fault:
            # aioquic does not hear GOAWAY. Who asks on, and is late with it, finds the connection closed: by H3_NO_ERROR.
            if "connection ended: 0x100" in str(fault):
                return
            raise
        assert (whole.status, whole.sha256) == (200, clients.sha256(CLIP)), whole
        assert (part.status, part.sha256) == (206, clients.sha256(CLIP, slice(first, last + 1))), part

    return work


def cached(edge: Edge, chance: random.Random) -> Callable[[int], None]:
    """What comes of an origin that is away at times: the right bytes, or no more of them and why."""
    wanted = clients.sha256(CLIP)

    def work(_: int) -> None:
        requests = [{"path": f"/clip.mp4?{chance.randrange(40)}"} for _ in range(3)]
        for reply in origins.ask(edge.lab, edge.certificates, requests):
            is_cut_off = reply.status == 200 and reply.reset == INTERNAL_ERROR
            is_right = reply.status in AWAY or (reply.status, reply.sha256) == (200, wanted)
            assert is_cut_off or is_right and reply.reset is None, (reply.status, reply.headers, reply.bytes, reply.reset)

    return work


def churn(lab: Lab) -> Callable[[int], None]:
    """Subscribers that come and go, some of which never read, and check all that they get."""
    host = lab.server["ipv4"]
    command = [PEERS / "venv/bin/python", CLIENTS / "fanout_churn.py", "--host", host, "--port", TCP_PORT, "--feed", host]
    command += ["--feed-port", FEED_PORT, "--subscribers", 100, "--life", 3]

    def work(done: int) -> None:
        report = json.loads(lab.run("client", *map(str, command), "--seed", str(done)))
        assert not report["faults"] and report["frames"], report

    return work


def publish(lab: Lab) -> Callable[[int], None]:
    """Publishers that come one after another, and a receiver that checks what it gets of each."""
    server, receiver = lab.server["ipv4"], Socket(lab, lab.client["ipv4"], 6004)
    number = 0

    def work(done: int) -> None:
        nonlocal number
        publisher = Socket(lab, lab.client["ipv4"], 5000)
        try:
            sent = packets(200, first=number, ssrc=done // 10)
            # Numbers go on within a stream.
            number = (number + 200) % 50_000 if done % 10 != 9 else 0
            publisher.send(sent, (server, 5004))
            assert receiver.take(len(sent)) == sent
        finally:
            publisher.socket.close()
        time.sleep(0.1)

    return work


@pytest.fixture
def origin(make_lab, root: Path, tmp_path: Path) -> Iterator[tuple[Lab, origins.Process]]:
    """A lab with an nginx that serves the clips; what it sends may be kept for two seconds."""
    lab = make_lab()
    block = f'server {{ listen 127.0.0.1:{ORIGIN}; root {root}; add_header cache-control "max-age=2"; etag on; }}'
    process = origins.nginx(lab, tmp_path / "nginx", ORIGIN, block)
    yield lab, process
    process.kill()


def idle(edge: Edge) -> None:
    """Nobody is connected any more, and nothing is held for those who were."""
    edge.server.wait_for("no connection", lambda m: m.sum("connections") == m.sum("tcp_connections") == 0)
    for gauge in ("requests_active", "requests_waiting", "response_bytes", "request_bytes", "file_block_pinned_bytes"):
        edge.server.wait_for(f"no {gauge}", lambda m, gauge=gauge: m.sum(gauge) == 0)


def test_everything_at_once(
    make_lab, make_server, make_fanout, make_relay, origin, certificates: Path, root: Path, tmp_path: Path
) -> None:
    print(f"seed {SEED}")
    chance = random.Random(SEED)
    drift = Drift(Path(os.environ.get("EXPRESSWAY_SOAK_SAMPLES", tmp_path / "samples.jsonl")))
    source, nginx = origin
    tcp = {"tcp": {"header_timeout": '"2s"'}}
    files = make_server(make_lab(), mode="copy", workers=2, more=DRAIN | tcp)
    cache = make_server(
        source, mode="udp", workers=2, root=None, more=DRAIN | {"files": {"cache": '"64MiB"'}},
        site=f'origin = "http://127.0.0.1:{ORIGIN}"\ncache = true\n',
    )
    cache.expect("out of service", "an origin's name")
    fanout = make_fanout(make_lab(), "--max-lag", "64KiB", "--send-buffer", "16KiB", "--ring", "1MiB")
    studio = make_lab()
    room = f'[[room]]\nname = "studio"\nrtp_in = "{studio.server["ipv4"]}:5004"\nrtp_out = ["{studio.client["ipv4"]}:6004"]\n'
    relay = make_relay(studio, room + 'publisher_timeout = "100ms"\n')
    with contextlib.ExitStack() as stack:
        edges = [Edge(server, stack.enter_context(succession(server)), certificates) for server in (files, cache)]
        first, second = edges
        looping = stack.enter_context(contextlib.ExitStack())
        looping.enter_context(loop(files, certificates, "/clip.mp4", root / "clip.mp4"))
        actors = [
            Actor("roaming", roam(first)),
            Actor("ranges", ranges(first, random.Random(SEED + 1))),
            Actor("cached", cached(second, random.Random(SEED + 2))),
            Actor("fan-out", churn(fanout.lab)),
            Actor("relay", publish(studio)),
        ]
        stack.callback(lambda: [actor.finish() for actor in actors])

        def restart_origin() -> None:
            nginx.kill()
            time.sleep(1)
            nginx.start()

        def slow_download() -> None:
            with download(files, certificates, chance.choice(("3", "2", "1.1")), rate=10_000_000) as under_way:
                first.reload()
                under_way.finish(root / "clip.mp4")

        end, rounds = time.monotonic() + 60 * MINUTES, 0
        while time.monotonic() < end or rounds < 2:
            events = [restart_origin, slow_download, first.bounce, second.reload, lambda: first.attack(chance.choice(ATTACKS))]
            if rounds % UPGRADE_EVERY == 0:
                events += [first.upgrade, second.upgrade]
            chance.shuffle(events)
            for event in events:
                event()
                for actor in actors:
                    actor.check()
            for name, pid in (
                ("files", first.processes.pids[-1]), ("cache", second.processes.pids[-1]),
                ("fanout", fanout.process.pid), ("relay", relay.process.pid),
            ):
                drift.take(name, pid)
            rounds += 1
        for actor in actors:
            actor.finish()
            actor.check()
            assert actor.done, f"{actor.name} was never done"
        looping.close()
        for edge in edges:
            idle(edge)
        print(f"{rounds} rounds, {[len(edge.processes.pids) for edge in edges]} processes, "
              f"{ {actor.name: actor.done for actor in actors} }, {sum(edge.reloads for edge in edges)} reloads")
    faults = drift.faults()
    assert not faults, faults
