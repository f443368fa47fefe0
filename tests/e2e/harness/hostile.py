"""Hostile clients beside a good one: what the good one notices, what the server says, pays and holds.

The worker has one core and all clients have the other. Server and good client go before everything else on the
machine, attackers and the plain client that stands in for them come last: so the good client's times tell of the
server, not of who else wants a core.
"""

import contextlib
import json
import os
import select
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from .lab import Lab
from .metrics import Metrics
from .paths import CLIENTS, HOST, LIMIT, PEERS
from .server import Server, address

CORES = sorted(os.sched_getaffinity(0))
SERVER_CORE, CLIENT_CORE = CORES[0], CORES[-1]
CLIENT_FIRST = ("chrt", "--fifo", "1")
# How the server is started. The session of its own is for `go_first`.
SERVER_PREFIX = ("taskset", "-c", str(SERVER_CORE), "nice", "-n", "-15", "setsid")


# Requests a second of the good client, and how long each measurement is.
RATE = 300
SECONDS = 0.5
# Groups a second of the one in a room.
ROOM_RATE = 100
# What a time may be off by whoever is attacked by whom, in microseconds: a wake-up that comes late, a burst of
# another client that was there first.
FLOOR = 3000
# An attack has more rounds while what has to be seen of it is not: on a slow machine half a second is no great deal.
ROUNDS = 20
# Times are judged by `scripts/test hostile` only, on a machine that has nothing else to do; else one round is enough.
JUDGED = os.environ.get("EXPRESSWAY_HOSTILE_P99") == "1"
# The bucket's bound beyond which a turn is long. What a turn is bound to is a tenth of that, but in a build without
# optimisation, on a machine with other things to do.
LONG_TURN = "0.01"
# Metrics of what a process says that it holds for its clients.
COUNTED = ("memory_bytes", "relay_moq_memory_bytes")
# What a connection takes beside what is counted, at most, in bytes (SECURITY.md).
CONNECTION = 150_000
# What the process may grow by for nobody in particular: buffers of workers and of the allocator, which keeps what was freed.
SLACK = 16 << 20


def on_core(core: int, *command: str | Path) -> list[str]:
    """A command line on a core."""
    return ["taskset", "-c", str(core), *map(str, command)]


def go_first(pid: int) -> None:
    """Has a process that leads a session go before others, where the kernel shares cores among sessions."""
    group = Path(f"/proc/{pid}/autogroup")
    if group.exists():
        group.write_text("-15")


class Child:
    """A process in a namespace that is told things by lines, and ends when it is told no more."""

    def __init__(self, lab: Lab, role: str, command: list[str]) -> None:
        self.command = command
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(lab.inside(role, *command), stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def line(self) -> str:
        """What it says next."""
        assert self.process.stdout
        ready, _, _ = select.select([self.process.stdout], [], [], LIMIT)
        line = self.process.stdout.readline() if ready else ""
        if not line:
            self.process.kill()
            _, errors = self.process.communicate()
            code = self.process.returncode
            raise AssertionError(f"{' '.join(self.command)}: said nothing more, exit code {code}\n{errors}")
        return line

    def tell(self, line: str) -> None:
        """Tells it something."""
        assert self.process.stdin
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def finish(self) -> str:
        """Its last words."""
        out, errors = self.process.communicate(timeout=LIMIT)
        assert self.process.returncode == 0, f"{' '.join(self.command)}: {errors}"
        return out

    def end(self) -> None:
        """Whatever it does, it is gone."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


class Attack(Child):
    """A hostile client that is under way."""

    def __init__(self, lab: Lab, connect: str, name: str, certificates: Path) -> None:
        if name.startswith("quicgo "):
            words = [PEERS / "quicgo", "-attack", name.split()[1], "-ca", certificates / "ca.pem"]
        else:
            words = [PEERS / "venv/bin/python", CLIENTS / "hostile", name]
        words += ["-connect", connect, "-name", HOST]
        super().__init__(lab, "client", on_core(CLIENT_CORE, "setsid", *words))
        assert self.line() == "attacking\n"

    def stop(self) -> dict[str, int]:
        """Ends it; what it has done and seen."""
        return json.loads(self.finish().splitlines()[-1])


@dataclass(frozen=True)
class Times:
    """What a good client has seen, in microseconds."""

    count: int
    p50: int
    p99: int
    max: int


class Good(Child):
    """A client that measures how it is served when it is told to."""

    def __init__(self, lab: Lab, *words: str | Path) -> None:
        super().__init__(lab, "client", on_core(CLIENT_CORE, *CLIENT_FIRST, *words))
        assert self.line() == "connected\n"

    @classmethod
    def of_gateway(cls, lab: Lab, connect: str, certificates: Path) -> "Good":
        """Asks for a small file at a steady rate on four connections, and now and then on a new one."""
        words = ["-connect", connect, "-name", HOST, "-ca", certificates / "ca.pem", "-paths", "/small.txt"]
        words += ["-steady", str(RATE), "-connections", "4", "-timeout", "300s"]
        return cls(lab, "env", "GOMAXPROCS=1", PEERS / "quicgo", *words)

    @classmethod
    def of_fanout(cls, lab: Lab, feed: str, tcp: str) -> "Good":
        """Sends a feed at a steady rate and subscribes to it, now and then anew."""
        return cls(lab, PEERS / "venv/bin/python", CLIENTS / "feed_times.py", feed, tcp, str(RATE))

    @classmethod
    def of_room(cls, lab: Lab, connect: str) -> "Good":
        """Publishes in a room of Media over QUIC at a steady rate and subscribes to that, and now and then connects anew."""
        return cls(lab, PEERS / "venv/bin/python", CLIENTS / "moq_times.py", connect, str(ROOM_RATE))

    def measure(self, seconds: float = SECONDS) -> tuple[Times, Times]:
        """Times of requests on connections that are there, and of those that connect first. All are answered."""
        self.tell(str(seconds))
        found = json.loads(self.line())
        assert not found.get("errors"), f"the good client was not served: {found}"
        return Times(**found["requests"]), Times(**found["handshakes"])


def cpu_seconds(pid: int) -> float:
    """CPU time of a process so far."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        # One that ends meanwhile has none.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def resident(pid: int) -> int:
    """Bytes of memory that a process has now."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return 1024 * int(line.split()[1])
    raise AssertionError("no VmRSS")


@dataclass
class Round:
    """One measurement without the attack and one with it."""

    calm: tuple[Times, Times]
    attacked: tuple[Times, Times]

    def exceeds(self) -> bool:
        """Whether a p99 has more than doubled."""
        return any(
            during.p99 > 2 * before.p99 + FLOOR for before, during in zip(self.calm, self.attacked, strict=True)
        )

    def __str__(self) -> str:
        pairs = zip(("request", "handshake"), self.calm, self.attacked, strict=True)
        return ", ".join(f"{name} p99 {calm.p99} to {hit.p99} µs (p50 {calm.p50} to {hit.p50}, max {hit.max})" for name, calm, hit in pairs)


@dataclass
class Outcome:
    """What an attack has come to."""

    rounds: list[Round] = field(default_factory=list)
    # All reports of the attackers together.
    report: dict[str, int] = field(default_factory=dict)
    grown: int = 0
    # The most that was counted of it, and the most connections at a time.
    counted: int = 0
    connections: int = 0
    cpu: float = 0.0
    before: Metrics | None = None
    after: Metrics | None = None

    def harms(self) -> bool:
        """Whether a good client's p99 has more than doubled, in two rounds."""
        return JUDGED and [one.exceeds() for one in self.rounds[:3]].count(True) >= 2

    def moved(self, name: str, **labels: str) -> int:
        """How far a counter went."""
        assert self.before and self.after
        return self.after.sum(name, **labels) - self.before.sum(name, **labels)

    def missing(self, moved: dict[str, int], seen: dict[str, int]) -> list[str]:
        """Which counters have not gone up by so much, and what the attackers have not seen so often."""
        short = [f"{name}: {self.moved(name)} of {least}" for name, least in moved.items() if self.moved(name) < least]
        counted = self.report.get
        return short + [f"{what}: {counted(what, 0)} of {least}" for what, least in seen.items() if counted(what, 0) < least]

    def explained(self) -> int:
        """How far the process may have grown by what it says that it holds, and by its connections."""
        return int(1.2 * self.counted) + self.connections * CONNECTION + SLACK

    def long_turns(self, name: str = "worker_turn_seconds") -> float:
        """The share of a worker's turns that took longer than it has reason for, cores that others took and all."""
        turns = self.moved(f"{name}_count")
        return (turns - self.moved(f"{name}_bucket", le=LONG_TURN)) / max(turns, 1)

    def __str__(self) -> str:
        rounds = "; ".join(map(str, self.rounds))
        grown = f"grown {self.grown / 2**20:.1f} MiB, counted {self.counted / 2**20:.1f} MiB, {self.connections} connections"
        return f"{rounds}; {grown}, CPU {self.cpu:.2f} s; {self.report}"


def beside(
    server: Server,
    good: Good,
    plain: Callable[[], Attack],
    attack: Callable[[], Attack],
    each: Callable[[], None] | None = None,
    moved: dict[str, int] | None = None,
    seen: dict[str, int] | None = None,
) -> Outcome:
    """Attacks a server beside a good client. Of times that are judged, two rounds of one kind in three decide.

    Before each round a plain client asks as fast as the attacker would, so that both measurements have the same
    company. `each` is called in the midst of each attack. `moved` and `seen` are what has to come of it, as in
    `Outcome.missing`; the caller judges.
    """
    outcome = Outcome()
    children: list[Child] = [good]
    try:
        good.measure(0.3)
        pid = server.process.pid
        held = resident(pid)
        outcome.before = server.metrics()
        while len(outcome.rounds) < ROUNDS:
            children.append(plain())
            calm = good.measure()
            children[-1].finish()
            children.append(under_way := attack())
            spent = cpu_seconds(pid)
            attacked = good.measure()
            outcome.cpu += cpu_seconds(pid) - spent
            outcome.grown = max(outcome.grown, resident(pid) - held)
            during = server.metrics()
            for counted in (name for name in COUNTED if during.has(name)):
                outcome.counted = max(outcome.counted, during.sum(counted) - outcome.before.sum(counted))
                outcome.connections = max(outcome.connections, during.sum("connections") + during.sum("tcp_connections"))
            if each:
                each()
            for what, count in under_way.stop().items():
                outcome.report[what] = outcome.report.get(what, 0) + count
            outcome.rounds.append(Round(calm, attacked))
            # A worker's numbers are a tenth of a second old at most.
            time.sleep(0.15)
            outcome.after = server.metrics()
            verdicts = [one.exceeds() for one in outcome.rounds]
            is_judged = not JUDGED or max(verdicts.count(True), verdicts.count(False)) >= 2
            if is_judged and not outcome.missing(moved or {}, seen or {}):
                break
    finally:
        for child in children:
            child.end()
    return outcome


def beside_gateway(
    server: Server,
    certificates: Path,
    name: str,
    connect: str | None = None,
    each: Callable[[], None] | None = None,
    moved: dict[str, int] | None = None,
    seen: dict[str, int] | None = None,
) -> Outcome:
    """Attacks a gateway, or another listener of its process; see `beside`."""
    lab, own = server.lab, address(server.lab.server["ipv4"])
    return beside(
        server,
        Good.of_gateway(lab, own, certificates),
        lambda: Attack(lab, own, "plain", certificates),
        lambda: Attack(lab, connect or own, name, certificates),
        each,
        moved,
        seen,
    )
