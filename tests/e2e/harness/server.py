"""`expressway serve` as a process in a lab."""

import http.client
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .daemon import Daemon
from .lab import Lab
from .metrics import Metrics
from .namespace import run_inside
from .paths import BINARY, LIMIT, PORT

ADMIN = ("127.0.0.1", 9180)


@dataclass
class Settings:
    """A configuration file in the making."""

    # None: those of ACME.
    certificates: Path | None
    root: Path | None
    listen: Sequence[str]
    mode: str = "copy"
    udp_send: str = "gso"
    workers: int = 1
    admin: int = ADMIN[1]
    # Other XDP programs may stay on the interface when it ends.
    beside: bool = False
    # More keys by table: {"quic": {"retry": '"always"'}}, values as TOML has them.
    more: dict[str, dict[str, str]] = field(default_factory=dict)
    # More lines of the site, and of the sections behind it.
    site: str = ""

    # Lines of arrays of tables, such as those of `[[http]]`.
    arrays: list[str] = field(default_factory=list)

    def text(self) -> str:
        """The file."""
        quoted = ", ".join(f'"{address}"' for address in self.listen)
        tables = {
            "server": {"listen": f"[{quoted}]", "workers": str(self.workers)},
            "io": {"mode": f'"{self.mode}"', "udp_send": f'"{self.udp_send}"'},
            "admin": {"listen": f'"{ADMIN[0]}:{self.admin}"'},
        }
        if self.certificates:
            files = {"certificate": "cert.pem", "private_key": "key.pem"}
            tables["tls"] = {key: f'"{self.certificates}/{file}"' for key, file in files.items()}
        for name, keys in self.more.items():
            tables.setdefault(name, {}).update(keys)
        lines: list[str] = []
        for name, keys in tables.items():
            lines += [f"[{name}]", *(f"{key} = {value}" for key, value in keys.items()), ""]
        lines += self.arrays
        lines += ["[[site]]", 'hosts = ["edge.test"]']
        if self.root:
            lines.append(f'root = "{self.root}"')
        lines += [self.site, ""]
        return "\n".join(lines)


@dataclass(frozen=True)
class Ready:
    """A `ready` line."""

    listen: str
    io: str
    workers: int


class Server(Daemon):
    """A running server. `ready` says what it obtained; `log` is everything it said on standard error."""

    # Others have XDP programs there too.
    beside = False

    def __init__(self, lab: Lab, folder: Path, settings: Settings, prefix: Sequence[str] = ()) -> None:
        self.lab = lab
        self.settings = settings
        self.admin_port = settings.admin
        self.beside = settings.beside
        # Where the admin listener is, if not in the lab.
        self.namespace: str | None = None
        self.config = folder / "expressway.toml"
        self.config.write_text(settings.text())
        self.log_file = folder / "expressway.log"
        command = lab.inside("server", *prefix, BINARY, "serve", "--config", self.config)
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        self.ready: list[Ready] = []
        # Addresses of TCP listeners.
        self.tcp: list[str] = []
        self._all_ready = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            words = line.split()
            if words[:1] == ["ready"]:
                pairs = dict(word.split("=", 1) for word in words[1:])
                if "tcp" in pairs:
                    self.tcp.append(pairs["tcp"])
                    continue
                self.ready.append(Ready(pairs["listen"], pairs["io"], int(pairs["workers"])))
                if len(self.ready) == len(self.settings.listen):
                    self._all_ready.set()
        self._all_ready.set()

    def wait_ready(self) -> "Server":
        """Waits for a `ready` line of each address."""
        assert self._all_ready.wait(LIMIT), f"no ready line:\n{self.log()}"
        assert len(self.ready) == len(self.settings.listen), (
            f"ended with {self.process.wait(LIMIT)} before it was ready:\n{self.log()}"
        )
        return self

    def wait_tcp(self, listeners: Sequence[str]) -> None:
        """Waits for the lines of TCP listeners, which come after those of UDP."""
        deadline = time.monotonic() + LIMIT
        while self.tcp != list(listeners):
            assert time.monotonic() < deadline, f"{self.tcp}, not {listeners}:\n{self.log()}"
            time.sleep(0.01)

    def obtained(self) -> str:
        """The one I/O mode of all its addresses."""
        (mode,) = {ready.io for ready in self.ready}
        return mode

    def ask(self, path: str, order: str | None = None) -> tuple[int, str]:
        """Asks the admin listener, or gives it an order, which is JSON."""

        def get() -> tuple[int, str]:
            connection = http.client.HTTPConnection(ADMIN[0], self.admin_port, timeout=LIMIT)
            try:
                if order is None:
                    connection.request("GET", path)
                else:
                    connection.request("POST", path, order, {"content-type": "application/json"})
                response = connection.getresponse()
                return response.status, response.read().decode()
            finally:
                connection.close()

        return run_inside(self.namespace or self.lab.server_namespace, get)

    def metrics(self) -> Metrics:
        """The metrics page now; a worker's numbers in it may be 100 ms old."""
        status, page = self.ask("/metrics")
        assert status == 200, page
        return Metrics(page)

    def wait_for(self, what: str, true: Callable[[Metrics], bool]) -> Metrics:
        """Waits until the metrics say so."""
        deadline = time.monotonic() + LIMIT
        while True:
            metrics = self.metrics()
            if true(metrics):
                return metrics
            if time.monotonic() > deadline:
                raise AssertionError(f"never so: {what}\n{self.ask('/metrics')[1]}\n{self.log()}")
            time.sleep(0.02)

    def wait(self) -> int:
        """Its exit code."""
        code = super().wait()
        self._reader.join(LIMIT)
        return code

    def objects(self) -> set[tuple[str, int]]:
        """Those that are not others' too."""
        return set() if self.beside else super().objects()

    def left(self) -> list[str]:
        """XDP programs, unless others have some."""
        return [] if self.beside else self.lab.programs("server")


def address(host: str, port: int = PORT) -> str:
    """`host:port`, in brackets where it has to be."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
