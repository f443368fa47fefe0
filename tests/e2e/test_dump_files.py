"""Files of `expressway dump`, without a capture: from `-r` to `-w`, and as Wireshark's tools read them."""

import json
import subprocess
from pathlib import Path

import pytest
from harness import captures
from harness.paths import BINARY, LIMIT, run

FIELDS = ("frame.time_epoch", "frame.len", "ip.src", "ip.dst", "udp.srcport", "udp.payload")


def dump(*words: str | Path, given: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    """Runs it to its end."""
    command = [str(BINARY), "dump", *map(str, words)]
    return subprocess.run(command, input=given, capture_output=True, timeout=LIMIT, check=False)


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    """A pcap file of 2000 packets."""
    return captures.write_pcap(tmp_path / "given.pcap", map(captures.frame, range(2000)))


def test_a_file_is_written_anew_and_wireshark_reads_the_same(capture: Path, tmp_path: Path) -> None:
    written = tmp_path / "written.pcapng"
    result = dump("-r", capture, "-w", written)
    assert result.returncode == 0 and not result.stderr, result.stderr
    assert captures.count(written) == 2000
    assert captures.tshark(written, *FIELDS) == captures.tshark(capture, *FIELDS)
    again = tmp_path / "again.pcapng"
    assert dump("-r", written, "-w", again).returncode == 0
    assert again.read_bytes()[:200] == written.read_bytes()[:200]
    assert captures.tshark(again, *FIELDS) == captures.tshark(written, *FIELDS)


def test_a_pipe_is_read_and_written(capture: Path) -> None:
    result = dump("-r", "-", "-w", "-", given=capture.read_bytes())
    assert result.returncode == 0, result.stderr
    assert len(captures.tshark("-", *FIELDS, given=result.stdout)) == 2000


def test_a_closed_pipe_is_no_error(capture: Path) -> None:
    for words in (["-t"], ["-w", "-"]):
        command = [str(BINARY), "dump", "-r", str(capture), *words]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdout and process.stderr
        process.stdout.read(1)
        process.stdout.close()
        assert process.wait(LIMIT) == 0
        assert not process.stderr.read()


def test_lines_are_tcpdumps(capture: Path) -> None:
    shown = run([BINARY, "dump", "-r", capture, "-tt", "-n", "-c", "3"]).splitlines()
    theirs = run(["tcpdump", "-r", capture, "-tt", "-n", "-c", "3"]).splitlines()
    assert shown == theirs
    octets = run([BINARY, "dump", "-r", capture, "-t", "-X", "-c", "1"]).splitlines()[1:]
    assert octets == run(["tcpdump", "-r", capture, "-t", "-n", "-X", "-c", "1"]).splitlines()[1:]
    documents = [json.loads(line) for line in run([BINARY, "dump", "-r", capture, "--json", "-c", "2"]).splitlines()]
    assert documents[1] == {
        "time": "1800000000.001000000",
        "interface": "",
        "length": 142,
        "captured": 142,
        "summary": "IP 192.0.2.1.40007 > 192.0.2.2.50000: UDP, length 100",
        "protocol": 17,
        "source": "192.0.2.1",
        "source_port": 40007,
        "destination": "192.0.2.2",
        "destination_port": 50000,
    }


def test_a_filter_is_libpcaps(capture: Path, tmp_path: Path) -> None:
    written = tmp_path / "a"
    assert dump("-r", capture, "-w", written, "udp[8:4]", "<", "100", "and", "not", "port", "40008").returncode == 0
    assert captures.count(written) == 100
    assert dump("-r", capture, "-w", written, "port 40008").returncode == 0
    assert captures.count(written) == 0
    result = dump("-r", capture, "udp", "prot", "7000")
    assert result.returncode == 2 and not result.stdout
    assert result.stderr.decode().startswith("expressway: filter `udp prot 7000`: ") and b"syntax error" in result.stderr


def test_a_ring_keeps_the_newest_packets_in_files_that_are_complete(capture: Path, tmp_path: Path) -> None:
    folder = tmp_path / "ring"
    folder.mkdir()
    assert dump("-r", capture, "-w", folder / "a", "-C", "20k", "-W", "3").returncode == 0
    files = sorted(folder.iterdir())
    assert [file.name for file in files] == ["a0", "a1", "a2"]
    numbers: list[int] = []
    for file in files:
        assert file.stat().st_size < (20 << 10) + 500
        payloads = captures.tshark(file, "udp.payload")
        assert len(payloads) == captures.count(file) > 0
        numbers += [int(payload[:8], 16) for (payload,) in payloads]
    assert sorted(numbers) == list(range(2000 - len(numbers), 2000))
    assert len(numbers) > 200


def test_a_full_disk_leaves_a_file_that_is_valid(capture: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    run(["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", disk])
    try:
        written = disk / "a.pcapng"
        result = dump("-r", capture, "-w", written)
        assert result.returncode == 1
        assert result.stderr.decode() == (
            f"expressway: {written}: No space left on device (os error 28); everything written before is valid\n"
        )
        assert captures.count(written) == len(captures.tshark(written, "udp.payload")) > 500
    finally:
        run(["umount", disk])


def test_what_is_wrong_is_said(capture: Path, tmp_path: Path) -> None:
    def refused(*words: str | Path) -> tuple[int, str]:
        result = dump(*words)
        return result.returncode, result.stderr.decode().strip()

    nowhere = tmp_path / "nowhere" / "a"
    no_such = "No such file or directory (os error 2)"
    assert refused("-r", nowhere) == (1, f"expressway: {nowhere}: {no_such}")
    assert refused("-r", capture, "-w", nowhere) == (1, f"expressway: {nowhere}: {no_such}")
    assert refused("-r", __file__) == (1, f"expressway: {__file__}: is not a pcap or pcapng file")
    cut = tmp_path / "cut"
    cut.write_bytes(capture.read_bytes()[:-1])
    assert refused("-r", cut, "-w", tmp_path / "of-cut") == (1, f"expressway: {cut}: is truncated within a packet")
    assert captures.count(tmp_path / "of-cut") == 1999
    assert refused("-r", capture, "-w", tmp_path / "a", "-W", "3") == (2, "expressway: -W needs -C or -G")
    both = refused("-r", capture, "-w", tmp_path / "a", "-W", "3", "-C", "1", "-G", "1")
    assert both == (2, "expressway: -W counts the files of -C or of -G, not of both")
    assert refused("-r", capture, "-w", "-", "-C", "1") == (2, "expressway: -w -: -C, -G and -W need a file")
    assert refused("-Z", "nobody-at-all", "-i", "lo") == (2, "expressway: -Z: no such user: `nobody-at-all`")
    missing = refused("-i", "none0")
    assert missing[0] == 1 and missing[1].startswith("expressway: interface none0: no such interface in this network")


def test_files_of_others_are_written_over_and_those_with_secrets_closed_to_them(capture: Path, tmp_path: Path) -> None:
    written = tmp_path / "a.pcapng"
    written.write_text("something else")
    written.chmod(0o644)
    assert dump("-r", capture, "-w", written, "-c", "5").returncode == 0
    assert captures.count(written) == 5
    assert written.stat().st_mode & 0o777 == 0o644
    result = dump("-r", capture, "-w", written, "-c", "5", "--secrets", tmp_path / "keys")
    assert result.returncode == 0
    assert result.stderr.decode() == (
        f"expressway: {written} will contain TLS secrets: anyone who reads it can decrypt the captured connections\n"
    )
    assert captures.count(written) == 5
    assert written.stat().st_mode & 0o777 == 0o600
    # Nor are they given to the user that it becomes.
    for source in (["-r", capture], ["-i", "lo"]):
        result = dump(*source, "-w", tmp_path / "theirs", "--secrets", tmp_path / "keys", "-Z", "nobody")
        assert result.returncode == 2
        assert result.stderr.decode() == "expressway: --secrets: user `nobody` could read the secrets; leave out -Z\n"
        assert not (tmp_path / "theirs").exists()


def test_only_root_gets_secrets_into_a_capture(capture: Path, tmp_path: Path) -> None:
    another = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", BINARY, "dump"]

    def said(*words: str | Path) -> tuple[int, int, str]:
        """Exit code, octets written and standard error of another user's."""
        with capture.open("rb") as given:
            result = subprocess.run([*another, *words], stdin=given, capture_output=True, timeout=LIMIT, check=False)
        return result.returncode, len(result.stdout), result.stderr.decode()

    # To read, and to write again, takes no privilege.
    code, size, _ = said("-r", "-", "-w", "-")
    assert code == 0 and size > 0
    refused = "expressway: --secrets: only root may put TLS secrets into a capture; run as root\n"
    for words in (["-r", "-"], ["-i", "lo"]):
        assert said(*words, "-w", "-", "--secrets", tmp_path / "keys") == (1, 0, refused)


def test_wireshark_is_told_of_interfaces(tmp_path: Path) -> None:
    program = tmp_path / "expressway-extcap"
    program.symlink_to(BINARY)
    shown = run([program, "--extcap-interfaces", "--extcap-version=4.0"]).splitlines()
    assert shown[0].startswith("extcap {version=")
    assert "interface {value=expressway-lo}{display=Expressway: lo with XDP and AF_XDP}" in shown
    options = run([program, "--extcap-interface", "expressway-lo", "--extcap-config"])
    assert "{call=--point}" in options and "{call=--secrets}" in options
    assert run([program, "--extcap-interface", "expressway-lo", "--extcap-dlts"]).startswith("dlt {number=1}")
    assert "lo [up, loopback" in run([BINARY, "dump", "-D"])
