"""What a datagram and a byte cost in instructions, kernel included, beside what they cost before: benchmarks/instructions.json. A commit
that makes one of them worse by more than 3 % fails.

The guest's one processor counts instructions instead of time (`expressway bench --bed guest-icount`), so what else the machine does is of no
account. Figures hold for one kernel and the build that CI tests (the profile `gate`). To take new ones, with the reason in the commit:

    EXPRESSWAY_WRITE_INSTRUCTIONS=1 scripts/test build guest_bench
"""

import json
import os
import statistics
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
BINARY = Path(os.environ.get("EXPRESSWAY_BIN", TARGET / "gate" / "expressway"))
FIGURES = ROOT / "benchmarks" / "instructions.json"

# By how much a median of the rounds may exceed the one before: several times what it varies by.
BOUND = 1.03
ROUNDS = 5

# Scenarios, what is counted of them, and the contestants whose figures repeat.
PATHS = {
    "instructions-gateway": ("instructions_per_byte", ["udp gso by the device", "copy", "zero-copy"], []),
    "instructions-transmit": ("instructions_per_packet", ["udp sendmmsg", "af-xdp copy", "af-xdp zero-copy"], ["--set", "size=1400"]),
    "instructions-receive": ("instructions_per_packet", ["udp recvmmsg", "af-xdp copy", "af-xdp zero-copy"], ["--set", "size=1400"]),
}

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 and "EXPRESSWAY_REQUIRE_ROOT_TESTS" not in os.environ, reason="needs root (taps in a namespace)"
)


def measure(scenario: str, folder: Path) -> tuple[str, dict[str, float]]:
    """The guest's kernel, and the median of each contestant."""
    metric, contestants, more = PATHS[scenario]
    named = [word for name in contestants for word in ("--server", name)]
    bed = ["--bed", "guest-icount", "--guest-deadline", "1700", "--rounds", str(ROUNDS)]
    command = [BINARY, "bench", scenario, "--out", folder, *bed, *more, *named]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=1800, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    lines = [json.loads(line) for line in (folder / "raw.jsonl").read_text().splitlines()]
    (kernel,) = {line["scenario"]["emulated"]["inside"]["kernel"] for line in lines if "scenario" in line}
    runs = [line["run"] for line in lines if "run" in line]
    values = {name: [run["values"][metric] for run in runs if run["contestant"] == name] for name in contestants}
    assert all(len(found) == ROUNDS for found in values.values()), result.stdout
    return kernel, {name: round(statistics.median(found), 2) for name, found in values.items()}


@pytest.mark.parametrize("scenario", PATHS)
def test_no_path_takes_more_instructions_than_before(scenario: str, tmp_path: Path) -> None:
    kernel, found = measure(scenario, tmp_path)
    figures = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    if os.environ.get("EXPRESSWAY_WRITE_INSTRUCTIONS") == "1":
        figures[scenario] = {"kernel": kernel, "unit": PATHS[scenario][0], "median": found}
        FIGURES.write_text(json.dumps(figures, indent=2, sort_keys=True) + "\n")
        return
    before = figures[scenario]
    if before["kernel"] != kernel:
        pytest.skip(f"the figures are of Linux {before['kernel']}, the guest has {kernel}")
    worse = {name: (before["median"][name], now) for name, now in found.items() if now > before["median"][name] * BOUND}
    assert not worse, f"{PATHS[scenario][0]}, before and now: {worse}"
