"""Lists of `expressway guard` that change while it runs: files, and what nginx serves over HTTP and TLS."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness.guard import Guard, answers, text
from harness.lab import Lab
from harness.origins import Process, nginx
from harness.paths import BINARY, LIMIT, run

PORT, PLAIN = 8443, 8081


class Source:
    """An nginx with a list."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.folder, self.root = folder, folder / "root"
        self.root.mkdir(parents=True)
        folder.chmod(0o755)
        self.list, self.log, self.kept = self.root / "blocked.txt", folder / "access.log", folder / "kept"
        self.write("# nobody yet\n")
        run([BINARY, "cert", "--host", "127.0.0.1", "--out", folder])
        files = f"root {self.root}; access_log {self.log};"
        servers = f"""server {{ listen 127.0.0.1:{PORT} ssl; {files}
          ssl_certificate {folder}/cert.pem; ssl_certificate_key {folder}/key.pem; }}
        server {{ listen 127.0.0.1:{PLAIN}; {files}
          location /moved {{ return 302 https://127.0.0.1:{PORT}/blocked.txt; }} }}"""
        self.server: Process = nginx(lab, folder, PORT, servers)

    def write(self, content: str) -> None:
        """Another list, at once."""
        new = self.list.with_suffix(".new")
        new.write_text(content)
        new.rename(self.list)

    def settings(self, url: str = f"https://127.0.0.1:{PORT}/blocked.txt", more: str = "") -> str:
        """A configuration that fetches it each second."""
        lists = f'[lists]\ninterval = "1s"\ntimeout = "5s"\nfolder = "{self.kept}"\nca = "{self.folder}/ca.pem"\n{more}'
        return text(f'block_url = "{url}"\n') + lists

    def statuses(self) -> list[str]:
        """What it answered."""
        return [line.split('"')[2].split()[0] for line in self.log.read_text().splitlines()] if self.log.exists() else []


@pytest.fixture
def make_source(make_lab, tmp_path: Path) -> Iterator[Callable[[Lab], Source]]:
    """Starts it; it ends with the lab."""
    sources: list[Source] = []

    def make(lab: Lab) -> Source:
        sources.append(Source(lab, tmp_path / "nginx"))
        return sources[-1]

    yield make
    for source in sources:
        source.server.kill()


def list_status(guard: Guard) -> dict:
    """What it says of its only list."""
    (one,) = guard.status()["lists"]
    return one


def until(holds: Callable[[], bool], guard: Guard) -> None:
    """Waits until something is so."""
    deadline = time.monotonic() + LIMIT
    while not holds():
        assert time.monotonic() < deadline, guard.log()
        time.sleep(0.05)


def test_a_list_is_fetched_kept_and_had_without_its_server(make_lab, make_guard, make_source) -> None:
    lab = make_lab()
    source = make_source(lab)
    guard = make_guard(lab, source.settings())
    until(lambda: "304" in source.statuses(), guard)
    assert answers(lab)
    assert list_status(guard)["entries"] == 0
    source.write(f"# attackers\n{lab.client['ipv4']} # one\n203.0.113.0/24\n")
    guard.wait_log("lists reloaded")
    assert not answers(lab)
    # A wrong line is named, and the whole list refused.
    source.write(f"198.51.100.0/24\n{lab.client['ipv6']}\nhere\n")
    guard.wait_log("line 3: `here` is not an address")
    assert not answers(lab)
    status = list_status(guard)
    assert (status["entries"], status["source"]) == (2, f"https://127.0.0.1:{PORT}/blocked.txt")
    assert status["failures"] >= 1 and "line 3" in status["error"]
    # So is one without anything.
    source.write("")
    guard.wait_log("is empty")
    source.server.kill()
    guard.wait_log("Connection refused")
    assert not answers(lab)
    metrics = guard.metrics()
    assert metrics.sum("guard_list_failures_total", list="block") >= 3
    assert metrics.sum("guard_list_entries", list="block", source=status["source"]) == 2
    assert metrics.sum("guard_list_age_seconds", list="block") < LIMIT
    guard.stop()
    # The next one has it though nobody serves it, from the first packet on.
    again = make_guard(lab, source.settings())
    assert not answers(lab)
    assert list_status(again)["entries"] == 2
    source.server.start()
    source.write("# over\n")
    until(lambda: answers(lab), again)


def test_a_url_may_be_redirected_and_has_to_be_trusted(make_lab, make_guard, make_source) -> None:
    lab = make_lab()
    source = make_source(lab)
    source.write(f"{lab.client['ipv4']}\n")
    trusted = source.settings(f"http://127.0.0.1:{PLAIN}/moved")
    untrusted = trusted.replace(f'ca = "{source.folder}/ca.pem"\n', "")
    guard = make_guard(lab, untrusted)
    guard.wait_log("TLS")
    assert answers(lab)
    assert list_status(guard)["age_seconds"] is None
    guard.reload(trusted, "configuration reloaded")
    until(lambda: not answers(lab), guard)
    guard.reload(text(), "configuration reloaded")
    assert answers(lab)
    assert guard.status()["lists"] == []


def test_a_list_has_a_size(make_lab, make_guard, make_source) -> None:
    lab = make_lab()
    source = make_source(lab)
    source.write(f"{lab.client['ipv4']}\n" + "# long\n" * 1000)
    guard = make_guard(lab, source.settings(more='size = "1KiB"\n'))
    guard.wait_log("longer than 1024 bytes")
    assert answers(lab)


def test_a_file_is_read_when_it_changes(make_lab, make_guard, tmp_path: Path) -> None:
    lab = make_lab()
    listed = tmp_path / "list"
    listed.write_text("203.0.113.0/24\n")
    guard = make_guard(lab, text(f'block_file = "{listed}"\n') + '[lists]\nfiles = "100ms"\n')
    assert answers(lab)
    new = tmp_path / "new"
    new.write_text(f"{lab.client['ipv4']}\n")
    os.replace(new, listed)
    guard.wait_log("lists reloaded")
    assert not answers(lab)
    # What is being written is not taken, nor what is gone.
    listed.write_text("203.0.113.0/24\n198.51.10")
    guard.wait_log("the last line is incomplete")
    listed.unlink()
    guard.wait_log("cannot be read")
    assert not answers(lab)
    assert list_status(guard)["failures"] == 2
    listed.write_text("203.0.113.0/24\n")
    until(lambda: answers(lab), guard)
    assert list_status(guard)["error"] is None
