"""A process whose log is a file."""

import subprocess
import time
from pathlib import Path

from .paths import LIMIT


class Logged:
    """What has such a process. It may be another one later, with the same file."""

    process: subprocess.Popen[str]
    log_file: Path

    def log(self) -> str:
        """What it said."""
        return self.log_file.read_text(errors="replace")

    def wait_log(self, text: str, times: int = 1) -> None:
        """Waits until it has said something."""
        deadline = time.monotonic() + LIMIT
        while self.log().count(text) < times:
            assert self.process.poll() is None, f"ended before it said {text!r}:\n{self.log()}"
            assert time.monotonic() < deadline, f"never said {text!r}:\n{self.log()}"
            time.sleep(0.02)
