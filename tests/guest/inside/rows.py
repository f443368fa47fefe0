"""What a kernel gives, row by row: a test for each, which on a kernel that is too old asks for the line that says so."""

import functools
import inspect
import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from harness.daemon import Daemon
from harness.lab import Lab
from harness.paths import BINARY, LIMIT

Version = tuple[int, int]
RUNNING: Version = tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:2])  # type: ignore[assignment]


class Program(Daemon):
    """A command of ours in a lab's namespace, ready."""

    def __init__(self, prefix: list[str], folder: Path, *words: str | Path, ready: str = "ready") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.log_file = folder / "log"
        command = [*prefix, str(BINARY), *map(str, words)]
        with self.log_file.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout
        self.first = self.process.stdout.readline()
        assert ready in self.first, f"{self.first}\n{self.log()}"

    def instructions(self) -> int:
        """The most that the verifier looked at for a program that it holds; 0 where the kernel does not say (before 5.16)."""
        found = [0]
        for path in Path(f"/proc/{self.process.pid}/fdinfo").iterdir():
            # Descriptors come and go meanwhile.
            with suppress(FileNotFoundError):
                found += [int(number) for number in re.findall(r"^verified_insns:\s*(\d+)$", path.read_text(), re.MULTILINE)]
        return max(found)


@dataclass(frozen=True)
class Given:
    """What a test has seen: instructions that the verifier looked at, what it was told is missing on this kernel, and whether
    that leaves what the row is about."""

    instructions: int = 0
    says: str = ""
    gives: bool = True


def record(name: str, given: Given) -> None:
    """Tells the machine outside."""
    row = {"row": name, "gives": given.gives, "says": given.says, "instructions": given.instructions}
    with Path(os.environ["EXPRESSWAY_ROWS"]).open("a") as rows:
        rows.write(json.dumps(row) + "\n")


@contextmanager
def lab(**options: str | int | bool) -> Iterator[Lab]:
    """A lab for as long as it takes."""
    made = Lab(f"row-{os.getpid()}", **options)
    try:
        yield made
    finally:
        made.down()


def refusal(text: str, *words: str | Path) -> str:
    """The last line of a command on the server that has to be refused, which has to have that text."""
    with lab() as made:
        ends = {"SERVER": made.server["ipv4"], "CLIENT": made.client["ipv4"]}
        filled = [functools.reduce(lambda text, end: text.replace(end, ends[end]), ends, str(word)) for word in words]
        command = made.inside("server", BINARY, "--log-level", "error", *filled)
        result = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    lines = result.stderr.strip().splitlines() or [f"exit code {result.returncode}, and nothing said"]
    assert result.returncode == 1 and text in lines[-1], lines
    return lines[-1]


def row(
    name: str, since: Version, refused: tuple[str | Path, ...] = (), says: str = ""
) -> Callable[[Callable[..., Given]], Callable[..., None]]:
    """A test of what kernels have since a version. On older ones the command `refused` has to end with a line that has
    `says`."""

    def decorate(test: Callable[..., Given]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(*arguments, **named) -> None:  # type: ignore[no-untyped-def]
            if RUNNING < since:
                record(name, Given(says=refusal(says, *refused), gives=False))
            else:
                record(name, test(*arguments, **named))

        run.__signature__ = inspect.signature(test)  # type: ignore[attr-defined]
        return run

    return decorate
