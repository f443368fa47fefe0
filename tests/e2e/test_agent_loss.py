"""An agent that goes away at any moment: after each message of a start, of the commands that may have one, and between
those of upkeep. Either they could not start and say so, or they go on."""

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

import pytest
from harness import clients
from harness.agent import NOBODY, UNPRIVILEGED, Agent
from harness.fanout import FEED_PORT, TCP_PORT, Fanout, Sender, Subscriber
from harness.lab import Lab
from harness.daemon import Daemon
from harness.paths import BINARY, LIMIT, PORT, open_to_all
from harness.recv import PORT as RECV_PORT
from harness.recv import Peer, Recv
from harness.relay import Relay
from harness.rtp import MediaRelay, Socket, packets
from harness.server import Server, Settings, address

# Of the room of `relay`, with RTCP on the next.
RTP_PORT = 5004

# The relay of messages is root.
RULE = f"""name = "all"
users = [0, {NOBODY}]
listen = ["0.0.0.0:{PORT}", "0.0.0.0:{RECV_PORT}", "0.0.0.0:50000", "0.0.0.0:{RTP_PORT}", "0.0.0.0:{RTP_PORT + 1}"]
interfaces = ["server0"]
"""

# Labs, each with a start at a time; those that wait in vain take no CPU.
AT_ONCE = 6
WAITING = 16

GONE = "agent connection lost"
ANEW = "agent connection lost during start-up: starting over"


class Serve:
    """`serve` in a mode."""

    def __init__(self, mode: str, obtained: str) -> None:
        self.mode, self.obtained = mode, obtained

    def start(self, lab: Lab, agent: Path, folder: Path) -> Daemon:
        """Starts it."""
        settings = Settings(
            certificates=self.certificates,
            root=self.root,
            listen=[address(lab.server["ipv4"])],
            mode=self.mode,
            more={"io": {"agent": f'"{agent}"'}},
        )
        return Server(lab, folder, settings, UNPRIVILEGED)

    def await_ready(self, server: Server) -> str:
        """Waits until it is ready; the mode."""
        server.wait_ready()
        return server.obtained()

    def use(self, server: Server) -> int:
        """Has it serve; the number of packets that came by AF_XDP."""
        (answer,) = clients.fetch(server.lab, "quicgo", server.settings.listen[0], self.certificates, ["/small.txt"])
        assert answer.status == 200
        return int(server.wait_for("packets", lambda m: m.sum("rx_xsk_packets_total") > 0).sum("rx_xsk_packets_total"))

    def stop(self, server: Server) -> None:
        """Ends it."""
        server.stop()


class Receive:
    """`recv`."""

    obtained = "copy"

    def start(self, lab: Lab, agent: Path, folder: Path) -> Daemon:
        """Starts it."""
        return Recv(lab, folder, "--io", "copy", "--agent", str(agent), prefix=UNPRIVILEGED)

    def await_ready(self, recv: Recv) -> str:
        """Waits until it is ready; the mode."""
        return recv.wait_ready()["io"]

    def use(self, recv: Recv) -> int:
        """Has it receive."""
        Peer(recv.lab, recv.lab.server["ipv4"]).send(20)
        # It is told to end next, which a busy machine may do before it has received.
        time.sleep(1)
        return 1

    def stop(self, recv: Recv) -> None:
        """Ends it; everything came, and some of it by AF_XDP."""
        recv.send_signal(signal.SIGTERM)
        assert recv.wait() == 0, recv.log()
        report = json.loads(recv.output)
        assert report["datagrams"] == 20 and report["by"]["af_xdp"] > 0, report


class Generate:
    """`gen`, which is ready when it sends, and ends by itself."""

    obtained = "copy"

    def start(self, lab: Lab, agent: Path, folder: Path) -> Daemon:
        """Starts it."""
        words = ["--to", address(lab.client["ipv4"], 7000), "--rate", "1k", "--count", "100", "--json"]
        words += ["--io", "copy", "--agent", str(agent)]
        line = lab.inside("server", *UNPRIVILEGED, BINARY, "--log-level", "info", "gen", "udp", *words)
        process = Daemon()
        process.log_file = folder / "gen.log"
        with process.log_file.open("wb") as log:
            process.process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=log, text=True)
        return process

    def await_ready(self, gen: Daemon) -> str:
        """Waits for its report."""
        output, _ = gen.process.communicate(timeout=LIMIT)
        assert gen.process.returncode == 0, gen.log()
        report = json.loads(output)
        assert (report["ended"], report["sent"], report["unsent"], report["refused"]) == ("done", 100, 0, 0), report
        return report["io"]

    def use(self, _gen: Daemon) -> int:
        """It is done."""
        return 1

    def stop(self, _gen: Daemon) -> None:
        """It is done."""


class FanOut:
    """`fanout`."""

    obtained = "copy"

    def start(self, lab: Lab, agent: Path, folder: Path) -> Daemon:
        """Starts it."""
        host = lab.server["ipv4"]
        words = ("--udp", address(host, FEED_PORT), "--tcp", address(host, TCP_PORT), "--framing", "len32")
        return Fanout(lab, folder, *words, "--io", "copy", "--agent", str(agent), prefix=UNPRIVILEGED)

    def await_ready(self, fanout: Fanout) -> str:
        """Waits until it is ready; the mode."""
        return fanout.wait_ready().ready[0]["io"]

    def use(self, fanout: Fanout) -> int:
        """A subscriber gets everything."""
        host = fanout.lab.server["ipv4"]
        subscriber, before = Subscriber(fanout.lab, host), fanout.metrics().sum("rx_xsk_packets_total")
        fanout.wait_for("the subscriber", lambda m: m.sum("fanout_subscribers") >= 1)
        subscriber.read_to(Sender(fanout.lab, host).send(50))
        subscriber.close()
        return int(fanout.wait_for("packets", lambda m: m.sum("rx_xsk_packets_total") > before).sum("rx_xsk_packets_total"))

    def stop(self, fanout: Fanout) -> None:
        """Ends it."""
        fanout.stop()


class RelayMedia:
    """`relay`, with a room that a publisher sends to and a receiver hears."""

    obtained = "copy"

    def start(self, lab: Lab, agent: Path, folder: Path) -> Daemon:
        """Starts it."""
        room = f"""[[room]]
name = "studio"
rtp_in = "{address(lab.server["ipv4"], RTP_PORT)}"
rtp_out = ["{address(lab.client["ipv4"], 6004)}"]
"""
        return MediaRelay(lab, folder / "relay", room, "--io", "copy", "--agent", str(agent), prefix=UNPRIVILEGED)

    def await_ready(self, relay: MediaRelay) -> str:
        """Waits until it is ready; the mode."""
        return relay.wait_ready().lines()[0]["ready"]["io"]

    def use(self, relay: MediaRelay) -> int:
        """What is published comes to the receiver; the number of packets that came by AF_XDP."""
        client = relay.lab.client["ipv4"]
        receiver, publisher = Socket(relay.lab, client, 6004), Socket(relay.lab, client, 0)
        try:
            sent = packets(20)
            publisher.send(sent, (relay.lab.server["ipv4"], RTP_PORT))
            assert receiver.take(20) == sent
        finally:
            receiver.socket.close()
            publisher.socket.close()
        relay.wait_metric("rx_xsk_packets_total", 1)
        return relay.metrics().sum("rx_xsk_packets_total")

    def stop(self, relay: MediaRelay) -> None:
        """Ends it."""
        relay.stop()


COMMANDS = {
    "serve": lambda: Serve("copy", "copy"),
    "serve-auto": lambda: Serve("auto", "hybrid"),
    "recv": Receive,
    "gen": Generate,
    "fanout": FanOut,
    "relay": RelayMedia,
}


class Bench:
    """Labs with an agent each, of which one has no other client."""

    def __init__(
        self,
        make_lab: Callable[..., Lab],
        folder: Path,
        command: Serve | Receive | Generate | FanOut | RelayMedia,
        at_once: int,
    ) -> None:
        self.command, self.folder, self.at_once = command, folder, at_once
        self._numbers = iter(range(10_000))
        self._lock = threading.Lock()
        self._free: SimpleQueue[tuple[Lab, Agent]] = SimpleQueue()
        self.agents = []
        for number in range(at_once):
            lab = make_lab(queues=1)
            agent = Agent(lab, folder / f"agent-{number}", RULE)
            self.agents.append(agent)
            self._free.put((lab, agent))

    def attempt(self, cut: int | None, back: bool, judge: Callable[[Daemon, Relay, Lab], None]) -> Relay:
        """One start, whose agent goes away after `cut` messages."""
        lab, agent = self._free.get()
        with self._lock:
            own = self.folder / f"start-{next(self._numbers)}"
        own.mkdir()
        # Whoever started it may reach its socket.
        own.chmod(0o755)
        relay = Relay(agent.socket, own / "relay.sock", cut, back)
        try:
            process = self.command.start(lab, relay.path, own)
            try:
                judge(process, relay, lab)
            except BaseException as error:
                error.add_note(f"after {cut} messages:\n{process.log()}\nagent:\n{agent.log()}")
                raise
            finally:
                if process.process.poll() is None:
                    process.process.kill()
                    process.process.wait(LIMIT)
        finally:
            relay.close()
        self._free.put((lab, agent))
        return relay

    def whole(self) -> int:
        """The messages of a start that nothing happens to."""
        count = 0

        def judge(process: Daemon, relay: Relay, _lab: Lab) -> None:
            nonlocal count
            assert self.command.await_ready(process) == self.command.obtained
            count = relay.count
            self.command.use(process)
            self.command.stop(process)

        self.attempt(None, True, judge)
        return count

    def all(self, cuts: Sequence[int], back: bool, judge: Callable[[Daemon, Relay, Lab], None]) -> None:
        """A start for each number of messages."""
        with ThreadPoolExecutor(self.at_once) as pool:
            for done in [pool.submit(self.attempt, cut, back, judge) for cut in cuts]:
                done.result()


@pytest.fixture
def bench(make_lab, tmp_path: Path, readable: Path, root: Path) -> Iterator[Callable[..., Bench]]:
    """Makes the labs for a command."""
    made: list[Bench] = []
    open_to_all(tmp_path)

    def make(name: str, at_once: int = AT_ONCE) -> Bench:
        command = COMMANDS[name]()
        command.certificates, command.root = readable, root
        made.append(Bench(make_lab, tmp_path, command, at_once))
        return made[-1]

    yield make
    for one in made:
        for agent in one.agents:
            agent.stop()


@pytest.mark.parametrize("name", list(COMMANDS))
def test_a_start_is_whole_whenever_the_agent_goes_and_comes_back(bench, name: str) -> None:
    bed = bench(name)
    command = bed.command
    messages = bed.whole()
    assert messages > 12, "hello, sockets, tables, an interface, its socket, a pair"

    def judge(process: Daemon, relay: Relay, _lab: Lab) -> None:
        # Also where it could do without, as `auto` could, it has what it would have had.
        assert command.await_ready(process) == command.obtained
        # The last message has no answer: who sent it may be done before it has passed.
        assert relay.has_cut.wait(LIMIT)
        command.use(process)
        command.stop(process)
        if 2 <= relay.cut < messages:
            assert GONE in process.log()

    # `gen` is ready only when all is over: its last messages give back what it had.
    bed.all(range(messages), True, judge)


@pytest.mark.parametrize("name", list(COMMANDS))
def test_a_start_fails_in_a_line_when_the_agent_stays_away(bench, name: str) -> None:
    bed = bench(name, WAITING)
    messages = bed.whole() - (2 if name == "gen" else 0)

    def judge(process: Daemon, relay: Relay, lab: Lab) -> None:
        assert process.process.wait(LIMIT) == 1, process.log()
        last = process.log().strip().splitlines()[-1]
        parts = ("expressway: agent ", str(relay.path), "connection lost during start-up", "not re-established within 5s")
        assert all(part in last for part in parts), last
        assert "xdp" not in lab.run("server", "ip", "link", "show", "server0")

    bed.all(range(messages), False, judge)


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "gen"])
def test_upkeep_goes_on_whenever_the_agent_goes_and_comes_back(bench, name: str) -> None:
    bed = bench(name)
    command = bed.command
    messages = bed.whole()

    def judge(process: Daemon, relay: Relay, _lab: Lab) -> None:
        assert command.await_ready(process) == command.obtained
        assert relay.has_cut.wait(LIMIT)
        process.wait_log("AF_XDP path reopened")
        assert GONE in process.log() and ANEW not in process.log()
        command.use(process)
        command.stop(process)

    # What each round asks: whether the program is there, how many queues there are; then the first of the next round.
    bed.all(range(messages, messages + 6), True, judge)


def own_agents(pid: int) -> list[int]:
    """The agents that a process has started for itself."""

    def is_agent(child: str) -> bool:
        try:
            return b"--own" in Path(f"/proc/{child}/cmdline").read_bytes()
        except OSError:
            return False

    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children if is_agent(child)]


def test_an_agent_of_its_own_that_dies_during_the_start(make_lab, readable: Path, root: Path, tmp_path: Path) -> None:
    lab = make_lab(queues=1)
    went_on, milliseconds = 0, 0
    # Ever later, until it has come too late for a few times.
    while went_on < 3:
        milliseconds += 15
        assert milliseconds < 1000 * LIMIT
        folder = tmp_path / f"start-{milliseconds}"
        folder.mkdir()
        settings = Settings(
            certificates=readable,
            root=root,
            listen=[address(lab.server["ipv4"])],
            more={"server": {"user": '"nobody"'}},
        )
        server = Server(lab, folder, settings)
        deadline = time.monotonic() + LIMIT
        while not (agents := own_agents(server.process.pid)):
            assert time.monotonic() < deadline and server.process.poll() is None, server.log()
        time.sleep(milliseconds / 1000)
        os.kill(agents[0], signal.SIGKILL)
        server._all_ready.wait(LIMIT)
        if server.ready:
            assert server.obtained() == "copy"
            (answer,) = clients.fetch(lab, "quicgo", settings.listen[0], readable, ["/small.txt"])
            assert answer.status == 200
            server.stop()
            went_on += 1
        else:
            assert server.wait() == 1, server.log()
            last = server.log().strip().splitlines()[-1]
            assert "agent of this server: " in last, server.log()
            assert any(part in last for part in ("the connection was closed", "connection lost")), server.log()
        assert "xdp" not in lab.run("server", "ip", "link", "show", "server0")
