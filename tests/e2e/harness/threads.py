"""Threads of a process that is under test, which come and go."""

import contextlib
from pathlib import Path


def threads(pid: int, *names: str) -> list[Path]:
    """The folders in /proc of the threads of these names. One that ends meanwhile is none."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if (task / "comm").read_text().strip() in names:
                found.append(task)
    return found
