"""`expressway guard` as a running process, and what tests of it ask."""

import http.client
import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from . import links
from .daemon import Daemon
from .lab import Lab
from .metrics import Metrics
from .namespace import run_inside
from .paths import BINARY, LIMIT

ADMIN = ("127.0.0.1", 9190)


class Guard(Daemon):
    """A running `expressway guard`."""

    def __init__(self, lab: Lab, folder: Path, text: str, prefix: tuple[str, ...] = ()) -> None:
        self.lab = lab
        folder.mkdir(exist_ok=True)
        self.file, self.log_file = folder / "guard.toml", folder / "guard.log"
        self.file.write_text(text)
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                lab.inside("server", *prefix, BINARY, "guard", "--config", self.file),
                stdout=subprocess.PIPE, stderr=log, text=True,
            )
        assert self.process.stdout
        self.ready = self.process.stdout.readline()

    def reload(self, text: str, says: str) -> None:
        """Changes the file and has it read."""
        times = self.log().count(says) + 1
        self.file.write_text(text)
        self.signal(signal.SIGHUP)
        self.wait_log(says, times)

    def request(self, method: str, path: str, body: str | None = None, fields: dict | None = None) -> tuple[int, str]:
        """An answer of its admin listener."""

        def ask() -> tuple[int, str]:
            connection = http.client.HTTPConnection(*ADMIN, timeout=LIMIT)
            try:
                connection.request(method, path, body, fields or {})
                response = connection.getresponse()
                return response.status, response.read().decode()
            finally:
                connection.close()

        return run_inside(self.lab.server_namespace, ask)

    def ask(self, path: str) -> tuple[int, str]:
        """A page of its admin listener."""
        return self.request("GET", path)

    def left(self) -> list[str]:
        """Its program."""
        return self.lab.programs("server")

    def order(self, path: str, order: object) -> tuple[int, str]:
        """What its admin listener answers to an order."""
        return self.request("POST", path, json.dumps(order), {"content-type": "application/json"})

    def status(self) -> dict:
        """What it did."""
        status, page = self.ask("/io")
        assert status == 200, page
        return json.loads(page)

    def metrics(self) -> Metrics:
        """Its metrics page."""
        return Metrics(self.ask("/metrics")[1])

    def wait_status(self, holds: Callable[[dict], bool]) -> dict:
        """Waits until its status is as wanted."""
        deadline = time.monotonic() + LIMIT
        while not holds(status := self.status()):
            assert time.monotonic() < deadline, f"{status}\n{self.log()}"
            time.sleep(0.05)
        return status


def answers(lab: Lab) -> bool:
    """Whether the server answers the client's echo request."""
    command = lab.inside("client", "ping", "-c1", "-W1", lab.server["ipv4"])
    return subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode == 0


def text(lines: str = "") -> str:
    """A file for the server's interface; `lines` come first."""
    return f'interfaces = ["{links.SERVER}"]\n{lines}\n[admin]\nlisten = "{ADMIN[0]}:{ADMIN[1]}"\n'
