"""What ends a run of the guest: one line that says what is wrong and what to do."""

import subprocess
from collections.abc import Sequence
from pathlib import Path


class Failure(Exception):
    """Not a fault of the code under test."""


def output(command: Sequence[str | Path], what: str, advice: str = "") -> str:
    """What a command prints. `what` names the step for the message if it fails."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise Failure(f"{what}: {command[0]}: {error.strerror}{advice}") from error
    if result.returncode != 0:
        lines = [line for line in result.stderr.splitlines() if line.startswith("E:")] or result.stderr.splitlines()
        raise Failure(f"{what}: {(lines or ['no message'])[-1].strip()}{advice}")
    return result.stdout
