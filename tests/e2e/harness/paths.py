"""Where things are, and how a command is run to its end."""

import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
BINARY = Path(os.environ.get("EXPRESSWAY_BIN", ROOT / "target" / "release" / "expressway")).resolve()
PEERS = ROOT / "target" / "peers"
CLIP = PEERS / "clip" / "bigbuckbunny.mp4"
LONG_CLIP = PEERS / "clip" / "bigbuckbunny-long.mp4"
CLIENTS = ROOT / "tests" / "peers"

# The name that certificates are for and that every client asks.
HOST = "edge.test"
PORT = 4433

# Long past anything that works: reached only by what hangs.
LIMIT = float(os.environ.get("EXPRESSWAY_TEST_LIMIT", "120"))


def run(command: Sequence[str | Path], *, limit: float = LIMIT) -> str:
    """Runs a command and returns what it printed; a failure shows its command and everything it said."""
    words = [str(word) for word in command]
    result = subprocess.run(words, capture_output=True, text=True, timeout=limit, check=False)
    if result.returncode != 0:
        raise AssertionError(f"{' '.join(words)}: exit code {result.returncode}\n{result.stdout}\n{result.stderr}")
    return result.stdout


def open_to_all(folder: Path) -> None:
    """Lets everyone read a folder of a test, and those above it that pytest has made."""
    above = Path(tempfile.gettempdir()).resolve()
    for each in (folder, *folder.parents):
        if each == folder or above in each.resolve().parents:
            each.chmod(0o755)
