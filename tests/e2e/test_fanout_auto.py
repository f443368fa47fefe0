"""`fanout --mode auto`: it goes by what was measured of both modes on this machine, and steps down where it has to."""

import copy
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness.agent import UNPRIVILEGED
from harness.fanout import FEED_PORT, TCP_PORT, Fanout, Sender, fanouts, subscribe
from harness.lab import Lab
from harness.paths import BINARY, LIMIT, open_to_all
from harness.server import address

SCENARIO = """title = "a feed"
kind = "fanout"
claim = "It is handed on."
measures = "What a delivery costs."
held_equal = ["everything"]
beds = ["lab"]
rounds = 1
seconds = SECONDS
warmup = SECONDS
[settings]
pattern = "poisson"
rate = 1000000
generator = "sleep"
[sweep]
load = [0.2]
subscribers = [2]
[[contestant]]
name = "the loop"
side = "peer"
forwarder = "send-loop"
[[contestant]]
name = "this process"
side = "kernel"
forwarder = "user"
[[contestant]]
name = "the kernel"
side = "kernel"
forwarder = "kernel"
"""

DEFAULT = Path("/var/lib/expressway/fanout/raw.jsonl")

# What the modes take, by the loop's.
USER = {"the loop": 1.0, "this process": 1.0, "the kernel": 1.5}
KERNEL = {"the loop": 1.0, "this process": 1.0, "the kernel": 0.5}


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A raw file of one round of each mode on this machine, with what keeps the C loop busy for a fifth of the time."""
    folder = tmp_path_factory.mktemp("measured")
    scenario = folder / "trial.toml"
    command = (BINARY, "--log-level", "error", "bench", scenario, "--out", folder)
    raw = folder / "raw.jsonl"
    # On a machine with other things to do nothing may be delivered in a moment, which the command says.
    for seconds in (0.3, 1, 3):
        scenario.write_text(SCENARIO.replace("SECONDS", str(seconds)))
        raw.unlink(missing_ok=True)
        said = subprocess.run(command, timeout=LIMIT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if said.returncode == 0:
            return raw
    pytest.fail(said.stderr + "\n".join(line for line in raw.read_text().splitlines() if "failed" in line))


def rounds(measured: Path, file: Path, figures: dict[str, float], count: int = 6, kernel: str | None = None) -> Path:
    """The same file with more rounds, in which the modes have these figures."""
    lines = [json.loads(line) for line in measured.read_text().splitlines()]
    if kernel:
        lines[0]["environment"]["kernel"] = kernel
    runs = [line for line in lines if "run" in line]
    lines = [line for line in lines if "run" not in line]
    for number in range(count):
        for line in runs:
            run = copy.deepcopy(line["run"])
            run["round"] = number
            for metric in ("mean_us", "cpu_us_per_delivery"):
                run["values"][metric] = figures[run["contestant"]] * 100
            lines.append({"run": run})
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


@pytest.fixture
def make_fanout(make_lab, tmp_path: Path) -> Iterator[Callable[..., Fanout]]:
    """Starts fan-outs with `--mode auto`; at the end each has to be alive and to stop cleanly."""
    with fanouts(tmp_path) as start:

        def make(lab: Lab, *flags: str | Path, prefix: tuple[str, ...] = ()) -> Fanout:
            host = lab.server["ipv4"]
            words = ("--udp", address(host, FEED_PORT), "--framing", "len32", "--tcp", address(host, TCP_PORT))
            return start(lab, *words, *map(str, flags), prefix=prefix).wait_ready()

        yield make


def serves(lab: Lab, fanout: Fanout) -> None:
    (subscriber,) = subscribe(lab, fanout)
    subscriber.read_to(Sender(lab, lab.server["ipv4"]).send(100))


def test_a_load_is_what_keeps_the_loop_busy(measured: Path) -> None:
    runs = [line["run"] for line in map(json.loads, measured.read_text().splitlines()) if "run" in line]
    assert {run["contestant"] for run in runs} == {"the loop", "this process", "the kernel"}
    (rate,) = {run["detail"]["rate"] for run in runs}
    assert rate > 10, runs
    (busy,) = [run["values"]["server_cpu_percent"] for run in runs if run["contestant"] == "the loop"]
    # Nothing is judged but that the trials led to about a fifth.
    assert 5 < busy < 60, runs


def test_what_was_measured_decides(make_lab, make_fanout, measured: Path, tmp_path: Path) -> None:
    lab = make_lab()
    few = ("--max-subscribers", "2")
    for name, figures, flags, mode, why in (
        ("kernel", KERNEL, few, "kernel", "the kernel takes 0.50"),
        ("user", USER, few, "user", "the kernel takes 1.50"),
        ("more", KERNEL, ("--max-subscribers", "3"), "user", "measured for up to 2 subscribers only"),
    ):
        file = rounds(measured, tmp_path / f"{name}.jsonl", figures)
        fanout = make_fanout(lab, "--measured", file, *flags)
        assert fanout.ready[0]["mode"] == mode, fanout.log()
        assert f"mode {mode}: {why}" in fanout.log()
        serves(lab, fanout)
        fanout.stop()


def test_what_was_not_measured_here_does_not(make_lab, make_fanout, measured: Path, tmp_path: Path) -> None:
    lab = make_lab()
    few = ("--max-subscribers", "2")
    for name, change, why in (
        ("few", {"count": 5}, "fewer than 6 rounds with both modes at 2 subscribers"),
        ("other", {"kernel": "5.4.0"}, "Linux 5.4.0"),
    ):
        file = rounds(measured, tmp_path / f"{name}.jsonl", KERNEL, **change)
        fanout = make_fanout(lab, "--measured", file, *few)
        assert fanout.ready[0]["mode"] == "user" and why in fanout.log(), fanout.log()
        fanout.stop()


@pytest.mark.parametrize(
    ("flags", "prefix", "why"),
    [(("--start", "last:5"), (), "the kernel retains no data"), ((), UNPRIVILEGED, "CAP_")],
    ids=["option", "privilege"],
)
def test_what_the_kernel_cannot_do_this_process_does(
    make_lab, make_fanout, measured: Path, tmp_path: Path, flags, prefix, why
) -> None:
    lab = make_lab()
    open_to_all(tmp_path)
    file = rounds(measured, tmp_path / "kernel.jsonl", KERNEL)
    fanout = make_fanout(lab, "--measured", file, "--max-subscribers", "2", *flags, prefix=prefix)
    assert fanout.ready[0]["mode"] == "user", fanout.log()
    measured_for, instead = fanout.log().index("mode kernel: the kernel takes 0.50"), fanout.log().index("falling back to mode user")
    assert measured_for < instead and why in fanout.log()[instead:], fanout.log()
    serves(lab, fanout)


@pytest.mark.skipif(DEFAULT.exists(), reason="this machine has been measured")
def test_nothing_measured_is_told(make_lab, make_fanout) -> None:
    fanout = make_fanout(make_lab())
    assert fanout.ready[0]["mode"] == "user" and "expressway bench fanout-even" in fanout.log(), fanout.log()


def test_a_file_that_is_none_is_an_error(make_lab, tmp_path: Path) -> None:
    lab = make_lab()
    wrong = tmp_path / "wrong.jsonl"
    wrong.write_text('{"environment": 5}\n')
    for flags, message in (
        (("--measured", tmp_path / "absent.jsonl"), "absent.jsonl"),
        (("--measured", wrong), "wrong.jsonl:1"),
        (("--measured", wrong, "--mode", "user"), "used only by --mode auto"),
        (("--measured", wrong, "--io", "copy"), "used only by --mode auto"),
    ):
        command = lab.inside(
            "server", BINARY, "fanout", "--udp", "127.0.0.1:5000", "--tcp", "127.0.0.1:9000", *map(str, flags)
        )
        result = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
        assert result.returncode == 2 and message in result.stderr, result.stderr
