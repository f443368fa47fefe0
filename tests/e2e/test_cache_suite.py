"""The public tests for HTTP caches, put to `expressway serve`: what has passed before passes."""

import json
import sys
from pathlib import Path

from harness.paths import BINARY, ROOT, run

SCRIPT = ROOT / "scripts/conformance.py"
BEFORE = ROOT / "tests/conformance/expressway.json"


def passed(report: Path) -> set[str]:
    """The tests that a report says are passed."""
    return {test["id"] for test in json.loads(report.read_text())["tests"] if test["verdict"] == "pass"}


def put(folder: Path, only: set[str]) -> set[str]:
    """Runs these tests, or all of them if there are none. Those that pass."""
    words = [sys.executable, SCRIPT, "run", "expressway", "--out", folder, "--only", *sorted(only)]
    run(["env", f"EXPRESSWAY_BIN={BINARY}", *words])
    return passed(folder / "expressway.json")


def test_what_has_passed_before_passes(tmp_path: Path) -> None:
    before = passed(BEFORE)
    lost = before - put(tmp_path / "all", set())
    # Some tests have lifetimes of seconds: what fails beside a hundred others passes by itself, unless it is broken.
    for again in range(2):
        if lost:
            lost -= put(tmp_path / str(again), lost)
    assert not lost, f"passed before: {sorted(lost)}; see scripts/conformance.py"
