"""A server whose process is succeeded by others (`expressway upgrade`)."""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator

from .agent import status
from .paths import BINARY, LIMIT
from .server import ADMIN, Server


def runs(pid: int) -> bool:
    """Whether a process, perhaps not ours, has not ended."""
    try:
        return status(pid)["State"][0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until_gone(pid: int) -> None:
    """Waits for the end of a process that is not ours to wait for."""
    deadline = time.monotonic() + LIMIT
    while runs(pid):
        assert time.monotonic() < deadline, f"{pid} goes on"
        time.sleep(0.02)


class Succession:
    """The processes of a server, by their IDs, the newest last."""

    def __init__(self, server: Server, admin: str | None = None) -> None:
        self.server = server
        self.admin = admin or f"{ADMIN[0]}:{server.admin_port}"
        self.pids = [server.process.pid]

    def upgrade(self) -> int:
        """Upgrades by the command, and the new process's ID."""
        result = self.ask()
        assert result.returncode == 0, f"{result.stderr}\n{self.server.log()}"
        words = dict(word.split("=") for word in result.stdout.split())
        # The command runs in a lab's namespaces, of which none is of processes.
        self.pids.append(int(words["pid"]))
        assert int(words["generation"]) == len(self.pids), result.stdout
        return self.pids[-1]

    def ask(self) -> subprocess.CompletedProcess[str]:
        """The command, whatever comes of it."""
        command = [BINARY, "upgrade", "--admin", self.admin]
        line = self.server.lab.inside("server", *map(str, command))
        return subprocess.run(line, capture_output=True, text=True, timeout=2 * LIMIT, check=False)

    def generations(self) -> dict:
        """`/generations` of the newest."""
        code, page = self.server.ask("/generations")
        assert code == 200, page
        return json.loads(page)

    def first_ends(self) -> int:
        """Waits for the end of the process that the test started. Its standard output is its successors' too."""
        code = self.server.process.wait(LIMIT)
        self.server.over = True
        return code

    def finish(self) -> None:
        """Ends all processes, the newest last; each has to end well."""
        if len(self.pids) == 1:
            return
        if not self.server.over:
            with contextlib.suppress(ProcessLookupError):
                self.server.process.send_signal(signal.SIGTERM)
            assert self.first_ends() == 0, self.server.log()
        for pid in self.pids[1:]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
            wait_until_gone(pid)
        assert not self.server.lab.programs("server"), "an XDP program was left"


@contextlib.contextmanager
def succession(server: Server, admin: str | None = None) -> Iterator[Succession]:
    """Those of a server; none is left behind, whatever becomes of the test."""
    made = Succession(server, admin)
    try:
        yield made
        made.finish()
    finally:
        # A test that failed meanwhile has its own fault, not that the first one has ended.
        server.over |= len(made.pids) > 1 and server.process.poll() is not None
        for pid in made.pids[1:]:
            if runs(pid):
                os.kill(pid, signal.SIGKILL)
