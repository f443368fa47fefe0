"""`expressway top -i` as people see it, under tmux: a frozen screen, the pane of a process, recordings that are full, and QUIC
connections whose client moves."""

import contextlib
import json
import os
import shlex
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import clients, links
from harness.lab import Lab
from harness.namespace import udp_socket
from harness.paths import BINARY, LIMIT, PORT
from harness.server import ADMIN, address
from harness.top import Top, octets, packets, rows, tops

FEED = 7000
# Numbers that nothing else on the screen has.
FIRST, SECOND = 40_411, 40_422


class Terminal:
    """`expressway top` under tmux."""

    def __init__(self, lab: Lab, folder: Path, *words: str) -> None:
        self._tmux = ["tmux", "-S", str(folder / "tmux"), "-f", "/dev/null"]
        command = shlex.join(lab.inside("server", BINARY, "top", "--interval", "100ms", *words))
        # Bounded, as it shows whatever becomes of this process.
        size = ["-x", "150", "-y", "40"]
        subprocess.run([*self._tmux, "new-session", "-d", *size, f"timeout {3 * LIMIT} {command}"], check=True)
        self._leader = int(self._ask("display-message", "-p", "#{pane_pid}"))
        self.wait_for(lambda screen: "Tab pane" in screen, "the first sample")

    def _ask(self, *words: str) -> str:
        return subprocess.run([*self._tmux, *words], check=True, capture_output=True, text=True).stdout

    def _session(self) -> set[int]:
        """The processes that it started."""
        found = set()
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(ProcessLookupError):
                if os.getsid(int(folder.name)) == self._leader:
                    found.add(int(folder.name))
        return found

    def press(self, *keys: str) -> None:
        """Keys as tmux calls them."""
        subprocess.run([*self._tmux, "send-keys", *keys], check=True)

    def shown(self) -> str:
        """The screen as it is."""
        return self._ask("capture-pane", "-p")

    def wait_for(self, condition: Callable[[str], object], what: str) -> str:
        """The screen, once something is true of it."""
        deadline = time.monotonic() + LIMIT
        while not condition(screen := self.shown()):
            assert time.monotonic() < deadline, f"never {what}:\n{screen}"
            time.sleep(0.05)
        return screen

    def quit(self) -> None:
        """Ends it by its key, and tmux with it."""
        self.press("q")
        deadline = time.monotonic() + LIMIT
        while subprocess.run([*self._tmux, "has-session"], check=False, capture_output=True).returncode == 0:
            assert time.monotonic() < deadline, "it does not end"
            time.sleep(0.05)

    def close(self) -> None:
        """Ends whatever is left."""
        subprocess.run([*self._tmux, "kill-server"], check=False, capture_output=True)
        deadline = time.monotonic() + LIMIT
        while left := self._session():
            assert time.monotonic() < deadline, f"its terminal is gone, and it is not: {left}"
            time.sleep(0.05)


@pytest.fixture
def make_terminal(make_lab, tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    """Starts them; none outlives its test."""
    made: list[Terminal] = []

    def make(lab: Lab, *words: str) -> Terminal:
        folder = tmp_path / f"terminal-{len(made)}"
        folder.mkdir()
        made.append(Terminal(lab, folder, *words))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def make_top(make_lab, tmp_path: Path) -> Iterator[Callable[..., Top]]:
    """Starts them without a screen."""
    with tops(tmp_path) as start:
        yield start


def send(lab: Lab, port: int, count: int) -> None:
    """Datagrams of the client's kernel from that port."""
    with udp_socket(lab.client_namespace, socket.AF_INET) as sender:
        sender.bind(("0.0.0.0", port))
        for _ in range(count):
            sender.sendto(bytes(200), (lab.server["ipv4"], FEED))


def test_a_frozen_screen_stays_as_it_is_whatever_key_is_pressed(make_lab, make_terminal, make_top) -> None:
    lab = make_lab()
    lab.run("client", "ping", "-c1", lab.server["ipv4"])
    witness = make_top(lab, links.SERVER)
    terminal = make_terminal(lab, "-i", links.SERVER)
    with udp_socket(lab.server_namespace, socket.AF_INET) as taker:
        taker.bind((lab.server["ipv4"], FEED))
        send(lab, FIRST, 50)
        terminal.wait_for(lambda screen: str(FIRST) in screen, "the first flow")
        terminal.press("P")
        frozen = terminal.wait_for(lambda screen: "FROZEN" in screen, "frozen")
        send(lab, SECOND, 5000)
    seen = lambda document: any(packets(row["received"]) == 5000 for row in rows(document, remote_port=SECOND))
    witness.wait_for(seen, "the second flow")
    # Something that is drawn and taken away again, so that all has been drawn anew.
    for key, text in (("h", "bars"), ("/", "filter: ")):
        terminal.press(key)
        terminal.wait_for(lambda screen, text=text: text in screen, text)
        terminal.press("Escape")
        assert terminal.wait_for(lambda screen, text=text: text not in screen, "without") == frozen
    # Other panes, other rows: of the same moment.
    terminal.press("v")
    terminal.wait_for(lambda screen: "by host" in screen, "hosts")
    terminal.press("v", "v", "v")
    assert terminal.wait_for(lambda screen: "by flow" in screen, "flows again") == frozen
    for pane in ("queues", "AF_XDP sockets", "drops", "CPUs", "process"):
        terminal.press("Tab")
        screen = terminal.wait_for(lambda screen: "by flow" not in screen, pane)
        # Interface and rates by path.
        assert screen.splitlines()[:3] == frozen.splitlines()[:3], screen
    terminal.press("Tab")
    assert terminal.wait_for(lambda screen: "by flow" in screen, "flows again") == frozen
    terminal.press("P")
    terminal.wait_for(lambda screen: str(SECOND) in screen and "FROZEN" not in screen, "the second flow")
    terminal.quit()


def test_the_pane_of_a_process_shows_it_and_its_rates(make_lab, make_terminal, make_server, certificates: Path) -> None:
    lab = make_lab()
    server = make_server(lab, mode="udp")
    terminal = make_terminal(lab, "-i", links.SERVER, "--admin", f"{ADMIN[0]}:{server.admin_port}")
    terminal.press("BTab")
    terminal.wait_for(lambda screen: "serve " in screen and "REQ/s" in screen, "the gateway")

    def requests(screen: str) -> list[str]:
        """Requests a second, by worker."""
        below = screen.partition("REQ/s")[2].splitlines()[1:]
        return [line.split()[2] for line in below if line.split()[:1] == ["0"] and len(line.split()) == 12]

    terminal.wait_for(lambda screen: requests(screen) == ["0"], "its worker")
    # A rate takes two samples, and the process goes on.
    client = clients.start(lab, address(lab.server["ipv4"]), certificates, ["/small.txt"], "-until-told")
    terminal.wait_for(lambda screen: requests(screen) not in ([], ["0"]), "requests")
    client.communicate("\n", timeout=LIMIT)
    terminal.wait_for(lambda screen: requests(screen) == ["0"], "their end")
    server.stop()
    terminal.wait_for(lambda screen: "refused" in screen.lower(), "its end")
    terminal.quit()


def test_a_recording_grows_no_further_than_it_may(make_lab, make_top, tmp_path: Path) -> None:
    lab, file, limit = make_lab(), tmp_path / "samples", 20 << 10
    top = make_top(lab, links.SERVER, "--record", str(file), "--record-size", str(limit))
    top.wait_log("the recording is full")
    size = file.stat().st_size
    assert limit // 2 < size <= limit
    # It goes on without.
    shown = top.last()["time"]
    top.wait_for(lambda document: document["time"] > shown, "another sample")
    assert file.stat().st_size == size
    top.stop()
    replay = subprocess.run([BINARY, "top", "--replay", file, "--json"], capture_output=True, text=True, check=True)
    samples = [json.loads(line) for line in replay.stdout.splitlines()]
    assert len(samples) == len(file.read_text().splitlines()) - 1 > 1
    assert {sample["interface"] for sample in samples} == {links.SERVER}


def test_a_connection_is_one_row_whatever_addresses_its_client_has(
    make_lab, make_server, make_top, certificates: Path
) -> None:
    lab = make_lab()
    make_server(lab, mode="udp")
    top = make_top(lab, links.SERVER, "--by", "connection", "--quic-port", str(PORT))
    flows = make_top(lab, links.SERVER, "--filter", str(PORT))
    report = clients.report(lab, address(lab.server["ipv4"]), certificates, ["/long.mp4"], "-rebind-every", "8000000")
    (answer,) = report["responses"]
    rebinds = report["rebinds"]
    assert rebinds >= 3 and answer["status"] == 200, report
    document = top.wait_for(
        lambda document: any(octets(row["sent"]) > answer["bytes"] for row in document["rows"]), "all of it"
    )
    (row,) = document["rows"]
    assert (row["protocol"], row["local_port"], len(row["cid"])) == ("quic", PORT, 32)
    assert row["conversations"] == rebinds + 1, row
    # The same as flows, of which it is the sum; its address is the last one's.
    found = flows.wait_for(lambda document: len(rows(document, local_port=PORT)) == rebinds + 1, "its flows")
    ports = {one["remote_port"] for one in rows(found, local_port=PORT)}
    assert len(ports) == rebinds + 1 and row["remote_port"] in ports
