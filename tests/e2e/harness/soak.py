"""Work that is done over and over while other things happen, and whether what a process holds stays the same."""

import json
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from .agent import status
from .fanout import descriptors
from .hostile import resident
from .paths import LIMIT

# Samples of a process before drift can be told from a start.
ENOUGH = 9


class Actor:
    """Does something again and again on a thread of its own, until it fails or is told to end."""

    def __init__(self, name: str, work: Callable[[int], None]) -> None:
        """`work` is given how often it was done before."""
        self.name, self.work = name, work
        self.done = 0
        self.fault: BaseException | None = None
        self._told = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._told.is_set():
            try:
                self.work(self.done)
            except BaseException as fault:  # told by `check`
                self.fault = fault
                return
            self.done += 1

    def check(self) -> None:
        """It has not failed."""
        if self.fault:
            raise AssertionError(f"{self.name}, after {self.done} times") from self.fault

    def finish(self) -> None:
        """Ends it after what it does now."""
        self._told.set()
        self._thread.join(3 * LIMIT)
        assert not self._thread.is_alive(), f"{self.name} does not end"


@dataclass(frozen=True)
class Sample:
    """What a process holds at one time."""

    seconds: float
    pid: int
    resident: int
    descriptors: int
    threads: int

    @classmethod
    def of(cls, pid: int, since: float) -> "Sample":
        """Of a process now."""
        return cls(time.monotonic() - since, pid, resident(pid), descriptors(pid), int(status(pid)["Threads"]))


# By how much the middle of the last third of the samples may exceed that of the second.
SLACK = {"resident": (1.1, 8 << 20), "descriptors": (1.1, 8), "threads": (1.0, 0)}


@dataclass
class Drift:
    """Samples of processes by name, written to a file as they are taken."""

    file: Path
    since: float = field(default_factory=time.monotonic)
    samples: dict[str, list[Sample]] = field(default_factory=dict)

    def take(self, name: str, pid: int) -> None:
        """One of a process."""
        sample = Sample.of(pid, self.since)
        self.samples.setdefault(name, []).append(sample)
        with self.file.open("a") as out:
            print(json.dumps({"process": name, **asdict(sample)}), file=out)

    def faults(self) -> list[str]:
        """What has grown."""
        found = []
        for name, samples in self.samples.items():
            third = len(samples) // 3
            if len(samples) < ENOUGH:
                continue
            for what, (factor, more) in SLACK.items():
                middle = [getattr(sample, what) for sample in samples]
                before, after = (statistics.median(part) for part in (middle[third : 2 * third], middle[-third:]))
                if after > before * factor + more:
                    found.append(f"{name}: {what} from {before} to {after}")
        return found
