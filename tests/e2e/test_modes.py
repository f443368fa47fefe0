"""What mode `auto` chooses by interface and queue, what it says of it, and that explicit modes never fall back."""

import json
import sys
from pathlib import Path

import pytest
from harness import clients, links
from harness.paths import CLIP
from harness.server import Server, address

SILENT = (sys.executable, str(Path(__file__).parent / "harness" / "silent.py"))


def fetch(server: Server, certificates: Path) -> None:
    """A file arrives as it is."""
    (answer,) = clients.fetch(
        server.lab, "quicgo", server.settings.listen[0], certificates, ["/clip.mp4"]
    )
    assert answer.sha256 == clients.sha256(CLIP)


def ways(server: Server) -> dict[str, list[tuple[str, str]]]:
    """How each queue receives and sends, by interface."""
    status, text = server.ask("/io")
    assert status == 200
    return {
        one["interface"]: [(queue["receive"], queue["transmit"]) for queue in one["queues"]]
        for one in json.loads(text)["interfaces"]
    }


def steps(server: Server) -> list[dict]:
    """Every step down."""
    return json.loads(server.ask("/io")[1])["step_downs"]


def without_device_gso(lab) -> None:
    """The server's interface no longer takes UDP super-packets."""
    lab.run("server", "ethtool", "-K", links.SERVER, "tx-udp-segmentation", "off")


def say_costs(cache: Path, **costs: int) -> None:
    """Has a calibration cache say what sending costs by each way, nanoseconds a packet."""
    content = json.loads(cache.read_text())
    for kept in content["costs"].values():
        kept.update(costs)
    cache.write_text(json.dumps(content))


def test_auto_says_what_it_chose_and_why(make_lab, make_server, certificates: Path) -> None:
    lab = make_lab(queues=2)
    server = make_server(lab, mode="auto", workers=2)
    assert server.obtained() == "hybrid"
    assert ways(server) == {links.SERVER: [("copy", "gso-device")] * 2}
    (step,) = steps(server)
    assert (step["interface"], step["queue"]) == (links.SERVER, None)
    assert (step["from"], step["to"]) == ("zero-copy", "copy")
    assert "EOPNOTSUPP" in step["reason"]
    # The log and the metrics say the same.
    assert "zero-copy steps down to copy" in server.log()
    metrics = server.metrics()
    assert metrics.sum("io_step_down_info", **{"from": "zero-copy", "to": "copy"}) == 1
    for queue in ("0", "1"):
        assert metrics.sum("io_mode_info", queue=queue, receive="copy", transmit="gso-device", attach="native") == 1
    fetch(server, certificates)


def test_what_is_uncertain_is_measured_once_and_kept(
    make_lab, make_server, certificates: Path, tmp_path: Path
) -> None:
    lab = make_lab()
    without_device_gso(lab)
    cache = tmp_path / "cache" / "calibration.json"
    more = {"io": {"calibration_cache": f'"{cache}"'}}
    server = make_server(lab, mode="auto", more=more)
    assert "send cost measured" in server.log()
    (costs,) = json.loads(cache.read_text())["costs"].values()
    assert costs["copy"] > 0 and costs["single"] > 0
    server.stop()
    # What the file says is believed, and not measured again.
    for transmit, copy in (("copy", 1), ("gso", 1_000_000)):
        say_costs(cache, copy=copy, gso=1000)
        server = make_server(lab, mode="auto", more=more)
        assert "send cost measured" not in server.log()
        assert ways(server) == {links.SERVER: [("copy", transmit)]}
        fetch(server, certificates)
        way = "xsk" if transmit == "copy" else "kernel"
        metrics = server.wait_for(f"sent by {way}", lambda m: m.sum(f"tx_{way}_packets_total") > 100)
        if way == "kernel":
            assert metrics.sum("tx_xsk_packets_total") == 0
        server.stop()
    # A broken file is measured anew, and is whole again.
    cache.write_text('{"version": 1, "costs"')
    server = make_server(lab, mode="auto", more=more)
    assert "measuring again" in server.log()
    assert "send cost measured" in server.log()
    json.loads(cache.read_text())


def test_interfaces_are_chosen_apart(make_lab, make_server, certificates: Path, tmp_path: Path) -> None:
    lab = make_lab()
    # A second link, which segments in the device; the first one does not.
    links.ip(lab, "server", f"link add second type veth peer name other netns {lab.client_namespace}")
    for role, name, host in (("server", "second", 1), ("client", "other", 2)):
        links.ip(lab, role, f"link set {name} up")
        links.ip(lab, role, f"addr add 10.99.0.{host}/24 dev {name}")
    without_device_gso(lab)
    cache = tmp_path / "calibration.json"
    more = {"io": {"calibration_cache": f'"{cache}"'}}
    make_server(lab, mode="auto", more=more).stop()
    say_costs(cache, copy=1, gso=1000)
    listen = [address(lab.server["ipv4"]), address("10.99.0.1")]
    server = make_server(lab, mode="auto", more=more, listen=listen)
    assert ways(server) == {links.SERVER: [("copy", "copy")], "second": [("copy", "gso-device")]}
    assert {ready.listen: ready.io for ready in server.ready} == {listen[0]: "copy", listen[1]: "hybrid"}
    before = server.metrics()
    for connect in reversed(listen):
        # Until the neighbour is known the kernel sends, and now and then after.
        lab.run("client", "ping", "-c", "1", connect.rsplit(":", 1)[0])
        for _ in range(5):
            (answer,) = clients.fetch(lab, "quicgo", connect, certificates, ["/clip.mp4"])
            assert answer.sha256 == clients.sha256(CLIP)
        way = "xsk" if connect == listen[0] else "kernel"
        sent = f"tx_{way}_packets_total"
        metrics = server.wait_for(f"sent by {way}", lambda m: m.sum(sent) > before.sum(sent) + 100)
        if way == "kernel":
            assert metrics.sum("tx_xsk_packets_total") == 0
        before = metrics


def test_a_silent_transmit_queue_is_found_at_start(
    make_lab, make_server, certificates: Path, tmp_path: Path
) -> None:
    lab = make_lab()
    without_device_gso(lab)
    cache = tmp_path / "calibration.json"
    more = {"io": {"calibration_cache": f'"{cache}"'}}
    make_server(lab, mode="auto", more=more).stop()
    say_costs(cache, copy=1, gso=1000)
    # `auto` would send by AF_XDP, finds that nothing is completed, and sends by the kernel.
    server = make_server(lab, mode="auto", more=more, prefix=SILENT)
    assert ways(server) == {links.SERVER: [("copy", "gso")]}
    (step,) = [step for step in steps(server) if step["queue"] == 0]
    assert (step["from"], step["to"]) == ("copy", "gso")
    assert "a probe frame was not completed within 1s" in step["reason"]
    fetch(server, certificates)
    server.stop()
    # An explicit mode is an error.
    server = make_server(lab, mode="copy", prefix=SILENT, ready=False)
    assert server.wait() == 1, server.log()
    assert f"--io copy: {links.SERVER} queue 0: AF_XDP: a probe frame was not completed" in server.log()
    assert "xdp" not in lab.run("server", "ip", "link", "show", links.SERVER)


def test_the_probe_frame_arrives_at_the_other_end(make_lab, make_server, certificates: Path) -> None:
    lab = make_lab()
    links.ip(lab, "server", "link add here type veth peer name there")
    links.ip(lab, "server", "link add deaf type veth peer name mute")
    for name in ("here", "there", "deaf", "mute"):
        links.ip(lab, "server", f"link set {name} up")
    links.ip(lab, "server", "addr add 10.98.0.1/24 dev here")
    settings = {"mode": "copy", "listen": [address("10.98.0.1")]}
    server = make_server(lab, more={"io": {"probe_peers": '{ here = "there" }'}}, **settings)
    assert server.obtained() == "copy"
    server.stop()
    # At another link's end nothing arrives.
    server = make_server(lab, more={"io": {"probe_peers": '{ here = "mute" }'}}, ready=False, **settings)
    assert server.wait() == 1, server.log()
    assert "was completed but did not arrive within 1s" in server.log()
    server = make_server(lab, more={"io": {"probe_peers": '{ here = "nowhere" }'}}, ready=False, **settings)
    assert server.wait() == 1, server.log()
    assert "probe_peers: here = \"nowhere\": no such interface" in server.log()


def test_an_attach_mode_that_the_device_lacks_is_an_error(make_lab, make_server) -> None:
    lab = make_lab()
    server = make_server(lab, mode="copy", more={"io": {"attach": '"offload"'}}, ready=False)
    assert server.wait() == 1, server.log()
    assert f"interface {links.SERVER}: the device does not support XDP offload" in server.log()
    server = make_server(lab, mode="generic", more={"io": {"attach": '"native"'}}, ready=False)
    assert server.wait() == 2, server.log()
    assert 'mode "generic" always uses generic XDP' in server.log()


def test_attach_mode_and_io_mode_are_chosen_apart(make_lab, make_server, certificates: Path) -> None:
    lab = make_lab()
    server = make_server(lab, mode="hybrid", more={"io": {"attach": '"generic"'}})
    assert "xdpgeneric" in lab.run("server", "ip", "link", "show", links.SERVER)
    fetch(server, certificates)
    server.wait_for("received by AF_XDP", lambda m: m.sum("rx_xsk_packets_total") > 0)


@pytest.mark.parametrize(("queues", "sockets", "workers"), [(4, 1, 2), (4, 2, 1), (1, 1, 3), (2, 2, 4)])
def test_queues_sockets_and_workers_need_not_be_equally_many(
    make_lab, make_server, certificates: Path, queues: int, sockets: int, workers: int
) -> None:
    lab = make_lab(queues=queues)
    server = make_server(
        lab, mode="auto", workers=workers, more={"io": {"queues": str(list(range(sockets)))}}
    )
    assert ways(server) == {links.SERVER: [("copy", "gso-device")] * sockets}
    report = clients.report(
        lab, server.settings.listen[0], certificates, ["/clip.mp4"], "-connections", "24", "-timeout", "100s"
    )
    assert not report.get("error"), report
    assert (report["connections"], report["complete"]) == (24, 24)
    # Workers publish their numbers now and then, each for itself.
    metrics = server.wait_for(
        "all connections, and nothing handed over lost",
        lambda m: m.sum("connections_established_total") == 24
        and m.sum("handed_over_total") == m.sum("taken_over_total"),
    )
    if sockets < queues:
        # Queues without a socket pass to the kernel's sockets.
        assert metrics.sum("xdp_packets_total", reason="no_socket") > 0
        server.wait_for("received by the kernel", lambda m: m.sum("rx_kernel_packets_total") > 0)
    server.wait_for("received by AF_XDP", lambda m: m.sum("rx_xsk_packets_total") > 0)
