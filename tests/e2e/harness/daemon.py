"""A process of ours that serves until it is told to end, and what has to be true of it at the end of its test."""

import re
import signal
import subprocess
import time
from pathlib import Path

from . import bpf
from .paths import LIMIT

# What no process of ours says when all is well: a panic, an error in its log, and whatever a sanitizer reports.
_ILL = re.compile(r"panicked at|\x1b?\S*\bERROR\b|Sanitizer|runtime error:", re.MULTILINE)


class Daemon:
    """What has such a process. It may be another one later, with the same log.

    A test that ends it says so by what it calls: `kill`, `stop`, or `wait` for one that ends by itself. One that it does
    not end has to be alive when the test is over, and to end well then.
    """

    process: subprocess.Popen[str]
    log_file: Path
    # Lines of its log that are no fault of its, parts of them: agents are ended by tests.
    expected: tuple[str, ...] = ("agent connection lost: ",)
    # The test has ended it, or seen its end.
    over = False

    def log(self) -> str:
        """What it said."""
        return self.log_file.read_text(errors="replace")

    def wait_log(self, text: str, times: int = 1, *, instead: str | None = None) -> None:
        """Waits until it has said something, or something else instead."""
        deadline = time.monotonic() + LIMIT
        while (log := self.log()).count(text) < times and (instead is None or instead not in log):
            assert self.process.poll() is None, f"ended before it said {text!r}:\n{self.log()}"
            assert time.monotonic() < deadline, f"never said {text!r}:\n{self.log()}"
            time.sleep(0.02)

    def expect(self, *parts: str) -> None:
        """Of lines in its log that the test brings about."""
        self.expected = (*self.expected, *parts)

    def signal(self, number: signal.Signals) -> None:
        """Sends it a signal."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and its end."""
        self.over = True
        self.process.kill()
        self.process.wait(LIMIT)

    def wait(self) -> int:
        """Its exit code, when it has ended."""
        code = self.process.wait(LIMIT)
        self.over = True
        return code

    def stop(self) -> None:
        """SIGTERM; it has to end well and to leave nothing behind."""
        objects = self.objects()
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
        assert self.wait() == 0, self.log()
        left = self.left()
        assert not left, f"it left {left}:\n{self.log()}"
        # The kernel gives them up a grace period later.
        deadline = time.monotonic() + LIMIT
        while left := [f"BPF {kind} {number}" for kind, number in objects if bpf.exists(kind, number)]:
            assert time.monotonic() < deadline, f"it left {left}:\n{self.log()}"
            time.sleep(0.05)

    def objects(self) -> set[tuple[str, int]]:
        """The BPF objects that go when it goes."""
        return bpf.held(self.process.pid) if self.process.poll() is None else set()

    def left(self) -> list[str]:
        """What else has stayed of one that ended well, and should not have."""
        return []

    def finish(self) -> None:
        """At the end of its test: alive unless the test ended it, ended well then, and never ill."""
        died = not self.over and self.process.poll() is not None
        assert not died, f"ended with {self.process.returncode} before its test was over:\n{self.log()}"
        if not self.over:
            self.stop()
        ill = [line for line in self.log().splitlines()
               if _ILL.search(line) and not any(part in line for part in self.expected)]
        assert not ill, f"it said {ill}:\n{self.log()}"


def finish_all(daemons: list[Daemon]) -> None:
    """As `Daemon.finish`, each of them whatever becomes of the others. The newest ends first."""
    faults: list[BaseException] = []
    for daemon in reversed(daemons):
        try:
            daemon.finish()
        except BaseException as fault:  # told below, when all have ended
            faults.append(fault)
            if daemon.process.poll() is None:
                daemon.kill()
    if faults:
        raise faults[0] if len(faults) == 1 else BaseExceptionGroup("servers at the end of their test", faults)
