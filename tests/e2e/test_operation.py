"""Signals, configuration mistakes and missing privilege, as an operator meets them."""

import functools
import json
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from harness import clients
from harness.paths import BINARY, CLIP, open_to_all, run
from harness.server import Settings, address
from harness.transfer import transfer

NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all")


@pytest.mark.parametrize("mode", ["copy", "udp"])
def test_sigterm_lets_open_transfers_finish(
    make_lab, make_server, certificates: Path, tmp_path: Path, mode: str
) -> None:
    lab = make_lab()
    root = tmp_path / "root"
    root.mkdir()
    # It takes far longer than counters take to be published, at any speed that a veth has.
    with (root / "huge.bin").open("wb") as huge:
        huge.truncate(512 << 20)
    server = make_server(lab, mode=mode, root=root, more={"server": {"drain": '"60s"'}})
    connect = address(lab.server["ipv4"])
    client = clients.start(lab, connect, certificates, ["/huge.bin"])
    server.wait_for("transfer under way", lambda m: m.sum("requests_active") == 1)
    server.signal(signal.SIGTERM)
    report = clients.finish(client)
    assert not report.get("error"), report
    assert report["responses"][0]["sha256"] == clients.sha256(root / "huge.bin")
    assert server.wait() == 0, server.log()
    refused = clients.report(lab, connect, certificates, ["/huge.bin"], "-timeout", "2s")
    assert refused["error"], "still served after SIGTERM"


def test_sigterm_ends_a_silent_connection(make_lab, make_server, certificates: Path) -> None:
    lab = make_lab()
    server = make_server(lab, mode="copy", more={"server": {"drain": '"60s"'}})
    client = clients.start(lab, address(lab.server["ipv4"]), certificates, ["/clip.mp4"], "-pause")
    assert client.stdout and client.stdout.readline() == "paused\n"
    server.signal(signal.SIGTERM)
    # No request is open: nothing to wait for. H3_NO_ERROR says that it was on purpose.
    assert server.wait() == 0, server.log()
    report = clients.finish(client, "\n")
    assert report["kind"] == "application-0x100", report["error"]


def test_sighup_takes_a_good_configuration_and_leaves_open_connections_alone(
    make_lab, make_server, certificates: Path, tmp_path: Path
) -> None:
    lab = make_lab()
    server = make_server(lab, mode="copy")
    connect = address(lab.server["ipv4"])
    client = clients.start(lab, connect, certificates, ["/clip.mp4"], "-pause")
    assert client.stdout and client.stdout.readline() == "paused\n"
    # Another root and another certificate, from another CA.
    other_root, other_certificates = tmp_path / "root", tmp_path / "certificates"
    other_root.mkdir()
    (other_root / "new.txt").write_text("new\n")
    run([BINARY, "cert", "--host", "edge.test", "--out", other_certificates])
    server.settings.root = other_root
    server.settings.certificates = other_certificates
    server.config.write_text(server.settings.text())
    server.signal(signal.SIGHUP)
    server.wait_log("reload: done")
    new, old = clients.fetch(lab, "quicgo", connect, other_certificates, ["/new.txt", "/clip.mp4"])
    assert (new.status, new.bytes, old.status) == (200, 4, 404)
    # The old connection lives, as it was.
    report = clients.finish(client, "\n")
    assert not report.get("error"), report
    assert [answer["sha256"] for answer in report["responses"]] == [clients.sha256(CLIP)] * 2


def test_what_a_reload_cannot_change_is_said(make_lab, make_server) -> None:
    server = make_server(make_lab(), mode="udp")
    assert server.ask("/config")[1] == server.config.read_text()
    server.settings.workers = 2
    server.config.write_text(server.settings.text())
    server.signal(signal.SIGHUP)
    server.wait_log("[server] changed; takes effect after a restart")
    server.wait_log("reload: done")
    first, rest = server.ask("/config")[1].split("\n", 1)
    assert first.startswith("# [server]") and "takes effect after a restart" in first
    assert rest == server.config.read_text()


def test_sighup_with_a_bad_configuration_changes_nothing(make_lab, make_server, certificates: Path) -> None:
    lab = make_lab()
    server = make_server(lab, mode="copy")
    server.expect("reload failed")
    good = server.config.read_text()
    server.config.write_text(good.replace("root =", "rot ="))
    server.signal(signal.SIGHUP)
    server.wait_log("reload failed")
    assert "rot" in server.log()
    (answer,) = clients.fetch(lab, "quicgo", address(lab.server["ipv4"]), certificates, ["/clip.mp4"])
    assert answer.sha256 == clients.sha256(CLIP)
    assert server.ask("/healthz")[0] == 200


def test_a_broken_certificate_stops_the_start(make_lab, make_server, certificates: Path, tmp_path: Path) -> None:
    lab = make_lab()
    broken = tmp_path / "broken"
    shutil.copytree(certificates, broken)
    (broken / "cert.pem").write_text("not a certificate\n")
    server = make_server(lab, ready=False, certificates=broken)
    assert server.wait() == 2
    assert f"{broken}/cert.pem" in server.log()
    (broken / "cert.pem").unlink()
    server = make_server(lab, ready=False, certificates=broken)
    assert server.wait() == 2
    assert f"{broken}/cert.pem" in server.log()


def check(config: Path) -> subprocess.CompletedProcess[str]:
    """`expressway serve --check`."""
    command = [str(BINARY), "serve", "--config", str(config), "--check"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_an_unknown_key_suggests_the_nearest(certificates: Path, root: Path, tmp_path: Path) -> None:
    config = tmp_path / "expressway.toml"
    text = Settings(certificates, root, ["198.18.0.1:4433"]).text()
    config.write_text(text)
    assert check(config).returncode == 0, check(config).stderr
    config.write_text(text.replace("workers =", "worker ="))
    result = check(config)
    assert result.returncode == 2
    line = text[: text.index("workers =")].count("\n") + 1
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    for part in (f"{config}:{line}", "worker", "workers"):
        assert part in result.stderr, result.stderr


def test_without_privilege_af_xdp_says_what_it_needs(
    make_lab, make_server, certificates: Path, tmp_path: Path
) -> None:
    lab = make_lab()
    readable = shutil.copytree(certificates, tmp_path / "readable")
    (readable / "key.pem").chmod(0o644)
    open_to_all(readable)
    make_server = functools.partial(make_server, prefix=NOBODY, certificates=readable)
    server = make_server(lab, mode="copy", ready=False)
    assert server.wait() == 1, server.log()
    assert "CAP_" in server.log(), server.log()
    server = make_server(lab, mode="udp")
    assert server.obtained() == "udp"
    (answer,) = clients.fetch(lab, "quicgo", address(lab.server["ipv4"]), certificates, ["/clip.mp4"])
    assert answer.sha256 == clients.sha256(CLIP)
    server.stop()
    # `auto` steps down, and says why.
    server = make_server(lab, mode="auto")
    assert server.obtained() == "udp"
    assert "CAP_" in server.log(), server.log()


def test_zero_copy_is_an_error_where_there_is_none(make_lab, make_server) -> None:
    lab = make_lab()
    server = make_server(lab, mode="zerocopy", ready=False)
    assert server.wait() == 1, server.log()
    assert "server0" in server.log()
    assert "xdp" not in lab.run("server", "ip", "link", "show", "server0")


def test_top_shows_paths_workers_and_counters(make_lab, make_server, certificates: Path) -> None:
    lab = make_lab(queues=2)
    server = make_server(lab, mode="copy", workers=2)
    top = ("server", BINARY, "top", "--once", "--interval", "300ms")
    with transfer(server, certificates):
        longest = "worker_turn_longest_seconds"
        before = server.wait_for("turns", lambda m: all(m.value(longest, worker=str(one)) > 0 for one in (0, 1)))
        shown = json.loads(lab.run(*top, "--json"))
        lines = lab.run(*top).splitlines()
        after = server.metrics()
    assert any(one["per_second"] == 0 for one in shown["series"]), "no counter"
    gateway = shown["gateway"]
    assert gateway["listen"] == [{"address": server.ready[0].listen, "io": "copy"}]
    assert {(one["interface"], one["queue"], one["receive"]) for one in gateway["queues"]} == {
        ("server0", "0", "copy"),
        ("server0", "1", "copy"),
    }
    assert [one["worker"] for one in gateway["workers"]] == [0, 1]
    assert sum(one["connections"] for one in gateway["workers"]) == 1
    for rate in ("received_bits_per_second", "sent_bits_per_second", "sent_xsk_per_second"):
        assert sum(one[rate] for one in gateway["workers"]) > 0, rate
    # The longest turn since the start, and turns with and without those over 1 ms, as the page had them around that.
    busy = max(gateway["workers"], key=lambda one: one["sent_bits_per_second"])
    label = {"worker": str(busy["worker"])}
    least, most = (metrics.value(longest, **label) for metrics in (before, after))
    assert least <= busy["longest_turn_seconds"] <= most, (least, most, busy)
    assert after.sum("worker_turn_seconds_count", **label) > before.sum("worker_turn_seconds_count", **label) > 0
    assert 0 <= busy["long_turns_per_second"] <= busy["turns_per_second"] and busy["turns_per_second"] > 0, busy
    (head,) = (number for number, line in enumerate(lines) if "MAX TURN" in line)
    row = lines[head + 1 + busy["worker"]].split()
    assert row[0] == label["worker"], lines
    told = re.fullmatch(r"([0-9.]+)ms", row[-2])
    assert told and least - 1e-6 <= float(told[1]) / 1e3 <= most + 1e-6, (row, least, most)
    assert re.fullmatch(r"[0-9.]+%", row[-1]), row
    assert lines[0].startswith("serve 127.0.0.1:9180") and "connections 1" in lines[0]
    assert lines[1] == f"listen {server.ready[0].listen}  io copy"
    assert any(line.split()[:1] == ["WORKER"] for line in lines)
    assert any("expressway_" in line for line in lines)
