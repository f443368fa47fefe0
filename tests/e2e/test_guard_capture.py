"""Samples of what `expressway guard` drops, as Wireshark's tools read them."""

from collections.abc import Iterator
from pathlib import Path
from socket import AF_INET

import pytest
from harness import captures
from harness.guard import Guard, answers, text
from harness.lab import Lab
from harness.namespace import udp_socket
from harness.paths import run

RULES = '[[rule]]\nname = "no {}"\nprotocol = "udp"\ndestination_port = 7000\naction = "drop"\n'


def capture(file: Path, more: str = "", rules: str = RULES.format("feeds")) -> str:
    """A configuration that samples all that it drops."""
    return text() + f'[capture]\nfile = "{file}"\none_in = 1\nrate = 100000\n{more}\n{rules}'


def send(lab: Lab, count: int, size: int = 100, port: int = 7000) -> None:
    """Datagrams of the client's to the server."""
    sender = udp_socket(lab.client_namespace, AF_INET)
    for number in range(count):
        sender.sendto(number.to_bytes(4, "big").ljust(size, b"x"), (lab.server["ipv4"], port))
    sender.close()


def send_all(lab: Lab, guard: Guard, count: int) -> None:
    """Datagrams of 1000 octets, no more at once than the buffers of samples hold."""
    before = done(guard.status())
    for sent in range(0, count, 100):
        send(lab, min(100, count - sent), 1000)
        wanted = before + min(sent + 100, count)
        guard.wait_status(lambda status, wanted=wanted: done(status) == wanted)


def done(status: dict) -> int:
    """Samples that were written, or could not be."""
    return status["capture"]["written"] + status["capture"]["unwritten"]


def wait_written(guard: Guard, count: int) -> None:
    """Waits for so many."""
    guard.wait_status(lambda status: status["capture"]["written"] >= count)


def test_wireshark_reads_reason_and_rule(make_lab, make_guard, tmp_path: Path) -> None:
    lab, file = make_lab(), tmp_path / "dropped.pcapng"
    guard = make_guard(lab, capture(file, 'files = 1\nsnaplen = 64'))
    assert answers(lab)
    send(lab, 50)
    wait_written(guard, 50)
    rows = captures.tshark(file, "frame.comment", "frame.len", "frame.cap_len", "ip.src", "udp.dstport", "frame.interface_name")
    assert rows == [["dropped: rule no feeds", "142", "64", lab.client["ipv4"], "7000", "server0"]] * 50
    verdicts = {row[0] for row in captures.tshark(file, "frame.verdict.ebpf_xdp")}
    assert verdicts == {"1"}, "XDP_DROP"
    # Another configuration goes on in the same file, or in the next, with its own names.
    guard.reload(capture(file, "files = 1\nsnaplen = 64", RULES.format("more")), "configuration reloaded")
    send(lab, 5)
    wait_written(guard, 55)
    guard.stop()
    assert captures.count(file) == 55
    names = [row[0] for row in captures.tshark(file, "frame.comment")]
    assert names[-5:] == ["dropped: rule no more"] * 5


def test_one_in_so_many_and_so_many_a_second(make_lab, make_guard, tmp_path: Path) -> None:
    lab, file = make_lab(), tmp_path / "dropped.pcapng"
    sampled = f'[capture]\nfile = "{file}"\nfiles = 1\none_in = 10\nrate = 20\n[capture.reasons]\nrule = 2\n'
    guard = make_guard(lab, text() + sampled + RULES.format("feeds"))
    send(lab, 2000)
    status = guard.wait_status(
        lambda status: sum(one["taken"] + one["limited"] for one in status["sampling"] if one["reason"] == "rule") >= 999
    )
    (rule,) = [one for one in status["sampling"] if one["reason"] == "rule"]
    assert rule["taken"] < rule["limited"]
    assert guard.metrics().sum("guard_samples_limited_total", reason="rule") == rule["limited"]
    guard.stop()
    assert captures.count(file) == rule["taken"]


def test_a_ring_of_files_goes_on_where_it_was(make_lab, make_guard, tmp_path: Path) -> None:
    lab, file = make_lab(), tmp_path / "dropped"
    content = capture(file, 'files = 3\nsize = "256KiB"\nsnaplen = 1024')
    guard = make_guard(lab, content)
    send_all(lab, guard, 900)
    guard.stop()
    files = sorted(tmp_path.glob("dropped*"))
    assert [one.name for one in files] == ["dropped0", "dropped1", "dropped2"]
    assert all(one.stat().st_size < 300 << 10 for one in files)
    counted = [captures.count(one) for one in files]
    assert sum(counted) < 900, "the oldest was written over"
    newest = max(files, key=lambda one: one.stat().st_mtime_ns)
    kept = newest.read_bytes()
    # The next process does not begin with the newest.
    guard = make_guard(lab, content)
    send(lab, 10, 1000)
    wait_written(guard, 10)
    guard.stop()
    assert newest.read_bytes() == kept
    assert 10 in [captures.count(one) for one in files]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder])
    yield folder
    run(["umount", "-l", folder])


def test_a_full_disk_does_not_stop_the_filter(make_lab, make_guard, small_disk: Path) -> None:
    lab, file, other = make_lab(), small_disk / "dropped", small_disk / "other"
    other.write_bytes(bytes(700 << 10))
    guard = make_guard(lab, capture(file, 'files = 1\nsize = "16MiB"\nsnaplen = 1024'))
    send_all(lab, guard, 600)
    status = guard.status()
    assert status["capture"]["failing"] and status["capture"]["written"] > 0
    assert guard.metrics().sum("guard_capture_failing") == 1
    assert guard.ask("/healthz")[0] == 200
    before = captures.count(file)
    assert before == status["capture"]["written"]
    # What it drops is dropped still.
    ruled = {one["rule"]: one for one in guard.status()["rules"]}["no feeds"]
    assert ruled["dropped_packets"] == 600
    other.unlink()

    def goes_on(status: dict) -> bool:
        send(lab, 1, 1000)
        return status["capture"]["written"] > before and not status["capture"]["failing"]

    status = guard.wait_status(goes_on)
    assert guard.log().count("capture not written") == 1
    assert "capture is written again" in guard.log()
    guard.stop()
    # Read cleanly, though it was full in between.
    assert captures.count(file) == len(captures.tshark(file, "frame.comment", show="udp.dstport == 7000")) > before


def test_what_cannot_be_written_at_all_is_an_error(make_lab, make_guard, tmp_path: Path) -> None:
    lab = make_lab()
    guard = make_guard(lab, text())
    guard.expect("configuration not reloaded")
    guard.reload(capture(tmp_path / "no" / "folder"), "capture.file: ")
    guard.reload(capture(tmp_path / "dropped", "files = 1"), "configuration reloaded")
    send(lab, 3)
    wait_written(guard, 3)
    guard.reload(text(), "configuration reloaded")
    assert guard.status()["capture"] is None
    assert captures.count(tmp_path / "dropped") == 3
