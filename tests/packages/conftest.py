"""What is packaged, made once for all tests. Run by `scripts/test packages`; the binary is that of EXPRESSWAY_BIN."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGING = ROOT / "packaging"
BINARY = Path(os.environ.get("EXPRESSWAY_BIN", ROOT / "target" / "release" / "expressway")).resolve()
# Reached only by what hangs.
LIMIT = 300


def run(command: Sequence[str | Path], *, code: int = 0, **options) -> str:
    """Runs a command to its end and returns what it said, all of it."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT, check=False, **options
    )
    assert done.returncode == code, f"{' '.join(words)}: exit code {done.returncode}\n{done.stdout}"
    return done.stdout


def need(program: str) -> str:
    """The path of a program that `scripts/setup packages` installs."""
    found = shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    assert found, f"{program} is missing: scripts/setup packages"
    return found


@dataclass(frozen=True)
class Debs:
    """Two revisions of the package, and the symbols of the first."""

    first: Path
    second: Path
    symbols: Path


@pytest.fixture(scope="session")
def debs(tmp_path_factory: pytest.TempPathFactory) -> Debs:
    """Packages of the binary as it is, whose symbols are those that it still has."""
    folder = tmp_path_factory.mktemp("debs")
    binary = folder / "expressway"
    shutil.copy(BINARY, binary)
    run(["objcopy", "--only-keep-debug", binary, f"{binary}.debug"])
    for revision in ("1", "2"):
        run([ROOT / "scripts/package", "deb", "--binary", binary, "--out", folder, "--revision", revision, "--compress", "none"])
    first, second = sorted(folder.glob("expressway_*.deb"))
    return Debs(first, second, min(folder.glob("expressway-dbgsym_*-1_*.deb")))
