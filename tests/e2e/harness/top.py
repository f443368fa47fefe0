"""`expressway top` of an interface as a process in a lab."""

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .daemon import Daemon, finish_all
from .kernel import lacks
from .lab import Lab
from .paths import BINARY, LIMIT

Document = dict[str, Any]


class Top(Daemon):
    """A running `expressway top --json`."""

    def __init__(self, lab: Lab, folder: Path, interface: str, *words: str, role: str = "server") -> None:
        self.lab = lab
        self.interface = interface
        folder.mkdir()
        self.log_file = folder / "top.log"
        flags = ["-i", interface, "--json", "--interval", "200ms", "--rows", "1000", *words]
        with self.log_file.open("wb") as log:
            command = lab.inside(role, BINARY, "top", *flags)
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        self.documents: list[Document] = []
        threading.Thread(target=self._read, daemon=True).start()
        self.wait_for(lambda document: document["present"], "the first sample")

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            # The last ones are enough.
            self.documents = [*self.documents[-9:], json.loads(line)]

    def last(self) -> Document:
        """The last sample."""
        return self.documents[-1]

    def wait_for(self, condition: Callable[[Document], object], what: str) -> Document:
        """Waits for a sample of which something is true."""
        deadline = time.monotonic() + LIMIT
        while True:
            for document in self.documents:
                if condition(document):
                    return document
            assert self.process.poll() is None, f"ended before {what}:\n{self.log()}"
            last = json.dumps(self.documents[-1:])[:4000]
            assert time.monotonic() < deadline, f"never {what}: {last}\n{self.log()}"
            time.sleep(0.02)

    def needs_tracing(self) -> None:
        """Ends the test on a kernel that lets nobody trace XDP programs."""
        for note in self.last()["notes"]:
            if "AF_XDP in copy mode" in note:
                lacks(f"tracing programs: {note}")


def rows(document: Document, **fields: object) -> list[Document]:
    """Rows that have these values."""
    return [row for row in document["rows"] if all(row[name] == value for name, value in fields.items())]


def packets(paths: Document) -> int:
    """Of all paths."""
    return sum(counts["packets"] for counts in paths.values())


def octets(paths: Document) -> int:
    """Of all paths."""
    return sum(counts["bytes"] for counts in paths.values())


def dropped(document: Document, by: str, reason: str) -> int:
    """How many packets were dropped for a reason."""
    return sum(drop["packets"] for drop in document["drops"] if drop["by"] == by and reason in drop["reason"])


@contextmanager
def tops(folder: Path) -> Iterator[Callable[..., Top]]:
    """Starts them; at the end each has to be alive, unless the test has ended it, and to stop cleanly."""
    running: list[Top] = []

    def start(lab: Lab, interface: str, *words: str, role: str = "server") -> Top:
        running.append(Top(lab, folder / f"top-{len(running)}", interface, *words, role=role))
        return running[-1]

    try:
        yield start
    finally:
        finish_all(running)
