"""`expressway bench` in a guest, with its own programs on devices that do zero-copy: that raw lines come back whole. Figures
are judged by nothing but the order of two that are far apart."""

import json
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
BINARY = Path(os.environ.get("EXPRESSWAY_BIN", TARGET / "release" / "expressway"))
ROUNDS = ("--rounds", "1", "--set", "size=64")

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 and "EXPRESSWAY_REQUIRE_ROOT_TESTS" not in os.environ, reason="needs root (taps in a namespace)"
)


def bench(folder: Path, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Runs it with its raw file in a folder."""
    command = [BINARY, "bench", "--out", folder, *arguments]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=1800, check=False)
    assert result.returncode == code, result.stdout + result.stderr
    return result


def lines(folder: Path, kind: str) -> list[dict]:
    """The raw lines of a kind."""
    text = (folder / "raw.jsonl").read_text().splitlines()
    return [line[kind] for line in map(json.loads, text) if kind in line]


def test_instructions_are_counted_with_zero_copy_and_without_times(tmp_path: Path) -> None:
    ways = {
        "udp sendmsg": (None, True),
        "udp gso in software": (None, False),
        "udp gso by the device": (None, True),
        "af-xdp copy": ("copy", True),
        "af-xdp zero-copy": ("zero-copy", True),
    }
    named = [word for way in ways for word in ("--server", way)]
    bed = ("--bed", "guest-icount", "--guest-deadline", "900")
    printed = bench(tmp_path, "instructions-transmit", *bed, *named, "--seconds", "0.1", *ROUNDS).stdout
    assert not lines(tmp_path, "failed") and not lines(tmp_path, "missing")
    (scenario,) = lines(tmp_path, "scenario")
    assert scenario["bed"] == "guest-icount" and "-icount" in scenario["emulated"]["processors"]
    inside = scenario["emulated"]["inside"]
    assert inside["cores"] == 1 and inside["kernel"] != os.uname().release
    # The machine of the raw file is this one.
    assert [one["kernel"] for one in lines(tmp_path, "environment")] == [os.uname().release]
    runs = {run["contestant"]: run for run in lines(tmp_path, "run")}
    assert {way: (run["detail"]["moved"]["obtained"], run["detail"]["offloads"]["tx-udp-segmentation"])
            for way, run in runs.items()} == ways  # fmt: skip
    for way, run in runs.items():
        assert run["values"]["xsk_percent"] == (100 if way.startswith("af-xdp") else 0), run
        assert not {"ns_per_packet", "mpps"} & set(run["values"]), run
    instructions = {way: run["values"]["instructions_per_packet"] for way, run in runs.items()}
    assert 0 < instructions["udp gso by the device"] < instructions["udp sendmsg"], instructions
    assert "instructions a packet" in printed and " ns" not in printed
    report = (tmp_path / "report.md").read_text()
    assert "**Where.** An emulated guest: Linux 6." in report and "## The article's claims" in report


def test_a_scenario_of_two_beds_runs_on_the_guest_for_ratios(tmp_path: Path) -> None:
    named = ("--server", "udp sendmsg", "--server", "af-xdp zero-copy")
    bed = ("--bed", "guest", "--guest-deadline", "900")
    printed = bench(tmp_path, "io-transmit", *bed, *named, "--seconds", "0.5", *ROUNDS).stdout
    runs = {run["contestant"]: run for run in lines(tmp_path, "run")}
    assert set(runs) == {"udp sendmsg", "af-xdp zero-copy"} and not lines(tmp_path, "failed")
    assert {run["scenario"] for run in runs.values()} == {"io-transmit@guest"}
    assert runs["af-xdp zero-copy"]["detail"]["moved"]["obtained"] == "zero-copy"
    assert "|  | CPU a packet, ratio to udp sendmsg | by AF_XDP, % | runs |" in printed, printed


def test_a_guest_that_is_late_is_ended_told_and_leaves_nothing(tmp_path: Path) -> None:
    result = bench(tmp_path, "instructions-transmit", "--bed", "guest-icount", "--guest-deadline", "1", *ROUNDS, code=1)
    assert "the guest did not finish within 1 s" in result.stderr.splitlines()[-1], result.stderr
    listed = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout
    assert "expressway-guest-" not in listed
