"""What networks and operators do to a server: fragments, a link that goes, a kill, a foreign program."""

from pathlib import Path

import pytest
from harness import clients, foreign
from harness.paths import CLIP, LONG_CLIP
from harness.server import address


@pytest.mark.parametrize("mode", ["copy", "hybrid", "udp"])
def test_a_client_behind_a_path_that_fragments(make_lab, make_server, certificates: Path, mode: str) -> None:
    lab = make_lab()
    server = make_server(lab, mode=mode)
    # QUIC's first packets have 1200 bytes or more: with this route each leaves in two fragments.
    lab.run("client", "ip", "route", "change", "198.18.0.0/24", "dev", "client0", "mtu", "1000")
    (answer,) = clients.fetch(lab, "quicgo", address(lab.server["ipv4"]), certificates, ["/clip.mp4"])
    assert answer.sha256 == clients.sha256(CLIP)
    # The kernel put the fragments together and gave them to the worker's socket.
    server.wait_for("packets by the kernel", lambda m: m.sum("rx_kernel_packets_total") > 0)
    if mode != "udp":
        metrics = server.wait_for("packets by AF_XDP", lambda m: m.sum("rx_xsk_packets_total") > 0)
        assert metrics.sum("xdp_packets_total", reason="fragment") > 0


@pytest.mark.parametrize("mode", ["copy", "hybrid", "udp"])
@pytest.mark.parametrize("end", ["server", "client"])
def test_a_link_that_goes_down_and_comes_back(
    make_lab, make_server, certificates: Path, mode: str, end: str
) -> None:
    lab = make_lab()
    server = make_server(lab, mode=mode)
    paths = ["/long.mp4"] * 20
    client = clients.start(lab, address(lab.server["ipv4"]), certificates, paths, "-timeout", "110s")
    sent = server.wait_for("transfer under way", lambda m: m.sum("bytes_sent_total") > 20_000_000)
    assert sent.sum("responses_complete_total") < len(paths)
    lab.run(end, "ip", "link", "set", f"{end}0", "down")
    lab.run(end, "ip", "link", "set", f"{end}0", "up")
    report = clients.finish(client)
    assert not report.get("error"), report
    assert {answer["sha256"] for answer in report["responses"]} == {clients.sha256(LONG_CLIP)}
    assert len(report["responses"]) == len(paths)
    server.wait_for("the last one counted", lambda m: m.sum("responses_complete_total") == len(paths))
    way = "kernel" if mode == "udp" else "xsk"
    received = f"rx_{way}_packets_total"
    server.wait_for(f"more packets by {way}", lambda m: m.sum(received) > sent.sum(received))


@pytest.mark.parametrize("mode", ["copy", "hybrid", "udp"])
def test_a_kill_leaves_nothing_that_a_restart_does_not_clean(
    make_lab, make_server, certificates: Path, mode: str
) -> None:
    lab = make_lab()
    connect = address(lab.server["ipv4"])
    server = make_server(lab, mode=mode)
    client = clients.start(lab, connect, certificates, ["/clip.mp4"], "-pause")
    assert client.stdout and client.stdout.readline() == "paused\n"
    server.kill()
    # The kernel took the program away with the process.
    assert "xdp" not in lab.run("server", "ip", "link", "show", "server0")

    again = make_server(lab, mode=mode)
    assert again.obtained() == mode
    # The old client learns at once that its connection is gone, instead of waiting out its timeout.
    report = clients.finish(client, "\n")
    assert report["kind"] == "stateless-reset", report
    assert [answer["sha256"] for answer in report["responses"]] == [clients.sha256(CLIP)]
    (answer,) = clients.fetch(lab, "quicgo", connect, certificates, ["/clip.mp4"])
    assert answer.sha256 == clients.sha256(CLIP)
    again.wait_for("the reset counted", lambda m: m.sum("resets_sent_total") >= 1)
    way = "kernel" if mode == "udp" else "xsk"
    again.wait_for(f"packets by {way}", lambda m: m.sum(f"rx_{way}_packets_total") > 0)


def test_a_foreign_program_is_named_and_left_alone(make_lab, make_server, foreign_object: Path) -> None:
    lab = make_lab()
    foreign.attach(lab, foreign_object)
    server = make_server(lab, mode="copy", ready=False)
    assert server.wait() == 1
    log = server.log()
    assert "server0" in log and "foreign_pass" in log and "--replace" in log, log
    assert "prog/xdp" in lab.run("server", "ip", "link", "show", "server0")
    foreign.detach(lab)


def test_a_foreign_program_is_replaced_when_told(
    make_lab, make_server, certificates: Path, foreign_object: Path
) -> None:
    lab = make_lab()
    foreign.attach(lab, foreign_object)
    server = make_server(lab, mode="copy", more={"io": {"replace": "true"}})
    (answer,) = clients.fetch(lab, "quicgo", address(lab.server["ipv4"]), certificates, ["/clip.mp4"])
    assert answer.sha256 == clients.sha256(CLIP)
    server.wait_for("packets by AF_XDP", lambda m: m.sum("rx_xsk_packets_total") > 0)
