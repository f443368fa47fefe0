"""The end of a test is judged: a server that has died by then fails it, whoever killed it, and one that is ill does too."""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.daemon import Daemon, finish_all
from harness.paths import LIMIT

# Lives until SIGTERM, and then ends as it is told to.
LIVES = """
import signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
print(*sys.argv[2:], file=sys.stderr, flush=True)
print("ready", flush=True)
signal.sigwait({signal.SIGTERM})
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def start(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[..., Daemon]:
    """Starts processes that end as they are told to, and are gone when the test is."""

    def make(code: int = 0, *says: str) -> Daemon:
        daemon = Daemon()
        daemon.log_file = tmp_path / f"log-{len(list(tmp_path.iterdir()))}"
        with daemon.log_file.open("wb") as log:
            words = [sys.executable, "-c", LIVES, str(code), *says]
            daemon.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=log, text=True)
        request.addfinalizer(daemon.kill)
        assert daemon.process.stdout and daemon.process.stdout.readline() == "ready\n"
        return daemon

    return make


def test_one_that_lives_and_ends_well_is_fine(start: Callable[..., Daemon]) -> None:
    daemon = start()
    daemon.finish()
    assert daemon.process.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGTERM])
def test_one_that_died_fails_its_test(start: Callable[..., Daemon], number: signal.Signals) -> None:
    daemon = start()
    # Not by the harness, as a crash comes: also of one that ends well there must be a word in the test.
    daemon.process.send_signal(number)
    daemon.process.wait(LIMIT)
    with pytest.raises(AssertionError, match="before its test was over"):
        daemon.finish()


def test_one_that_the_test_ended_is_fine(start: Callable[..., Daemon]) -> None:
    killed, waited, stopped = start(), start(), start()
    killed.kill()
    waited.signal(signal.SIGTERM)
    assert waited.wait() == 0
    stopped.stop()
    finish_all([killed, waited, stopped])


def test_one_that_dies_of_being_ended_fails_its_test(start: Callable[..., Daemon]) -> None:
    with pytest.raises(AssertionError):
        start(3).finish()


ILL = ["thread 'worker' panicked at src/main.rs", "2026-01-01T00:00:00Z ERROR it broke", "AddressSanitizer: heap"]


@pytest.mark.parametrize("words", ILL)
def test_one_that_said_it_was_ill_fails_its_test(start: Callable[..., Daemon], words: str) -> None:
    daemon = start(0, words)
    daemon.kill()
    with pytest.raises(AssertionError, match="it said"):
        daemon.finish()
    expected = start(0, words)
    expected.expect(words[-5:])
    expected.finish()


def test_all_are_ended_and_each_fault_is_told(start: Callable[..., Daemon]) -> None:
    first, dead, last = start(), start(), start(3)
    dead.process.kill()
    dead.process.wait(LIMIT)
    with pytest.raises(BaseExceptionGroup) as raised:
        finish_all([first, dead, last])
    assert len(raised.value.exceptions) == 2
    assert [daemon.process.returncode for daemon in (first, last)] == [0, 3]


SUITE = """
import signal

def test_that_passes(make_server, make_lab):
    server = make_server(make_lab())
    server.process.send_signal(signal.{name})
    server.process.wait(20)
"""


@pytest.mark.parametrize("name", ["SIGKILL", "SIGABRT"])
def test_a_test_of_which_a_server_died_is_no_passed_one(tmp_path: Path, name: str) -> None:
    """A whole run of pytest with these fixtures: what would be told to whoever runs the tests."""
    suite = tmp_path / "test_inner.py"
    suite.write_text(SUITE.format(name=name))
    here = Path(__file__).parent
    words = [sys.executable, "-m", "pytest", "-q", "-p", "conftest", "-p", "no:cacheprovider", "--rootdir", tmp_path, suite]
    run = subprocess.run(words, cwd=here, capture_output=True, text=True, timeout=10 * LIMIT, check=False)
    assert run.returncode == 1, run.stdout + run.stderr
    assert "1 passed, 1 error" in run.stdout and "before its test was over" in run.stdout, run.stdout
