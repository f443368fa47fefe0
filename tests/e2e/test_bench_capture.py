"""`expressway bench` of captures: every scenario with all its contestants, briefly. No figure is judged here."""

import json
import subprocess
from pathlib import Path

import pytest
from harness.paths import BINARY, LIMIT, ROOT

FILES = ROOT / "crates" / "bench" / "scenarios"
BRIEF = ("--rounds", "1", "--seconds", "0.5")


def bench(scenario: str | Path, out: Path, *words: str, code: int = 0) -> list[dict]:
    """Runs a scenario and gives the lines of its raw file."""
    command = [BINARY, "--log-level", "error", "bench", scenario, "--out", out, "--peers", out / "no-peers", *words]
    result = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=LIMIT, check=False)
    assert result.returncode == code, result.stdout + result.stderr
    return [json.loads(line) for line in (out / "raw.jsonl").read_text().splitlines()]


def runs(lines: list[dict]) -> dict[str, dict]:
    """Runs by contestant; of several points, the last."""
    missing = [line for line in lines if "missing" in line or "failed" in line]
    assert not missing, missing
    return {line["run"]["contestant"]: line["run"] for line in lines if "run" in line}


@pytest.mark.parametrize("sending", ["gso", "sendmmsg"])
def test_a_filter_that_matches_nothing_captures_nothing_and_is_charged(tmp_path: Path, sending: str) -> None:
    made = runs(bench("capture-cost", tmp_path, *BRIEF, "--set", f"udp_send={sending}"))
    assert set(made) == {"nothing attached", "expressway dump", "tcpdump"}
    for name, run in made.items():
        assert run["values"]["gbit_per_cpu_second"] > 0 and run["detail"]["counted"]["requests"] > 0, run
        expected = None if name == "nothing attached" else {"packets": 0, "lost": 0}
        assert run["detail"]["captured"] == expected, run
    assert made["expressway dump"]["detail"]["reader_ns"] > 0


def test_an_idle_capture_has_a_cost(tmp_path: Path) -> None:
    made = runs(bench("capture-idle", tmp_path, *BRIEF))
    assert set(made) == {"expressway dump", "expressway top", "tcpdump"}
    assert made["expressway dump"]["values"]["reader_percent"] > 0 < made["expressway top"]["values"]["reader_percent"]
    for run in made.values():
        assert run["detail"]["counted"] is None and set(run["values"]) == {"reader_percent"}, run


def test_a_capture_of_everything_has_the_packets_of_the_load(tmp_path: Path) -> None:
    lines = bench("capture-loss", tmp_path, *BRIEF, "--set", "udp_send=sendmmsg", "--set", "snaplen=128")
    made = runs(lines)
    assert set(made) == {"nothing attached", "expressway dump", "tcpdump"}
    for name in ("expressway dump", "tcpdump"):
        captured, counted = made[name]["detail"]["captured"], made[name]["detail"]["counted"]
        # The warm-up and what the client sends are in it too.
        assert captured["packets"] + captured["lost"] >= counted["datagrams"] > 0, made[name]
        assert 0 <= made[name]["values"]["lost_percent"] <= 100


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (('reader = "tcpdump"', 'reader = "xdpdump"'), "xdpdump captures at an XDP program"),
        (('reader = "tcpdump"', 'reader = "top"'), "top counts everything"),
        (('matches = "nothing"', 'matches = "nothing"\ntraffic = "none"'), "there is nothing to measure"),
    ],
)
def test_what_does_not_fit_together_is_said(tmp_path: Path, change: tuple[str, str], expected: str) -> None:
    scenario = tmp_path / "trial.toml"
    text = (FILES / "capture-cost.toml").read_text()
    assert change[0] in text
    # xdpdump has no filter either: everything matches.
    text = text.replace('matches = "nothing"', 'matches = "all"') if "xdpdump" in change[1] else text
    scenario.write_text(text.replace(*change))
    command = [BINARY, "bench", scenario, "--out", tmp_path]
    result = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=LIMIT, check=False)
    assert result.returncode == 2 and expected in result.stderr and len(result.stderr.splitlines()) == 1, result.stderr
