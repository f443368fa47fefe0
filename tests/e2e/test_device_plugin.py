"""The AF_XDP device plugin of Kubernetes: its program, its map, and a pod that has CAP_NET_RAW and nothing else."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import clients
from harness.agent import NOBODY, status
from harness.device_plugin import DevicePlugin
from harness.paths import CLIP
from harness.server import address

NET_RAW = 1 << 13
POD = (
    "setpriv",
    f"--reuid={NOBODY}",
    f"--regid={NOBODY}",
    "--clear-groups",
    "--inh-caps=-all,+net_raw",
    "--ambient-caps=-all,+net_raw",
    "--bounding-set=-all,+net_raw",
    "--no-new-privs",
)


@pytest.fixture
def make_plugin(tmp_path: Path) -> Iterator[Callable[..., DevicePlugin]]:
    """Starts plugins; they end with the test."""
    plugins: list[DevicePlugin] = []

    def make(lab, **options: str) -> DevicePlugin:
        folder = tmp_path / f"plugin-{len(plugins)}"
        folder.mkdir()
        options.setdefault("pod", os.uname().nodename)
        plugin = DevicePlugin(lab, folder, device="server0", **options)
        plugins.append(plugin)
        return plugin

    yield make
    for plugin in plugins:
        plugin.close()


def io(plugin: DevicePlugin) -> dict[str, dict[str, str]]:
    """The part of a configuration that names the plugin. A user may pin 8 MiB (RLIMIT_MEMLOCK)."""
    return {"io": {"device_plugin": f'"{plugin.path}"', "frames": "1024"}}


@pytest.mark.parametrize("mode", ["copy", "hybrid"])
def test_a_pod_serves_by_the_plugins_program(make_lab, make_plugin, make_server, readable: Path, mode: str) -> None:
    lab = make_lab()
    plugin = make_plugin(lab)
    server = make_server(lab, mode=mode, certificates=readable, prefix=POD, more=io(plugin))
    now = status(server.process.pid)
    assert int(now["CapEff"], 16) == NET_RAW, now
    assert server.obtained() == mode
    for client in clients.CLIENT_NAMES:
        connect = address(lab.server["ipv4"])
        (answer,) = clients.fetch(lab, client, connect, readable, ["/clip.mp4"])
        assert answer.sha256 == clients.sha256(CLIP)
    server.wait_for("packets by AF_XDP", lambda m: m.sum("rx_xsk_packets_total") > 0)
    # What the program does not take, the kernel sockets serve.
    assert plugin.asked[:3] == [f"/connect,{plugin.pod}", "/version", "/xsk_map_fd,server0"]
    assert server.process.poll() is None
    server.signal(15)
    assert server.wait() == 0, server.log()
    assert plugin.asked[-1] == "/fin"
    assert "xdp" in lab.run("server", "ip", "link", "show", "server0"), "the plugin's program is its own"


def test_a_confined_pod_measures_and_keeps_nothing(make_lab, make_plugin, make_server, readable: Path) -> None:
    lab = make_lab()
    lab.run("server", "ethtool", "-K", "server0", "tx-udp-segmentation", "off")
    plugin = make_plugin(lab)
    # A system call that the confinement does not allow would kill the server.
    more = io(plugin)
    cache = readable / "cache" / "calibration.json"
    more["io"]["calibration_cache"] = f'"{cache}"'
    server = make_server(lab, mode="auto", certificates=readable, prefix=POD, more=more)
    assert int(status(server.process.pid)["Seccomp"]) == 2
    assert "send cost measured" in server.log()
    assert not cache.parent.exists()
    assert server.obtained() in ("copy", "hybrid")
    (answer,) = clients.fetch(lab, "quicgo", address(lab.server["ipv4"]), readable, ["/clip.mp4"])
    assert answer.sha256 == clients.sha256(CLIP)
    server.signal(15)
    assert server.wait() == 0, server.log()


@pytest.mark.parametrize("mode", ["copy", "udp"])
def test_the_plugin_prepares_sockets_for_busy_polling(
    make_lab, make_plugin, make_server, readable: Path, mode: str
) -> None:
    lab = make_lab(queues=2)
    plugin = make_plugin(lab)
    more = io(plugin)
    more["io"] |= {"wait": '"busy-poll"', "busy_poll": '"30us"', "busy_poll_budget": "16"}
    server = make_server(lab, mode=mode, certificates=readable, prefix=POD, more=more)
    assert server.obtained() == mode
    # The kernel socket of the one worker, and the AF_XDP sockets of both queues.
    assert plugin.asked.count("/config_busy_poll,30,16") == (3 if mode == "copy" else 1), plugin.asked
    (answer,) = clients.fetch(lab, "quicgo", address(lab.server["ipv4"]), readable, ["/clip.mp4"])
    assert answer.sha256 == clients.sha256(CLIP)
    server.signal(15)
    assert server.wait() == 0, server.log()
    plugin.polls = False
    server = make_server(lab, mode=mode, ready=False, certificates=readable, prefix=POD, more=more)
    assert server.wait() == 1
    assert str(plugin.path) in server.log() and "/config_busy_poll_nak" in server.log(), server.log()


def test_what_the_plugin_does_not_give_is_named(make_lab, make_plugin, make_server, readable: Path) -> None:
    lab = make_lab()
    plugin = make_plugin(lab, pod="another-pod")
    server = make_server(lab, ready=False, certificates=readable, prefix=POD, more=io(plugin))
    assert server.wait() == 1
    assert str(plugin.path) in server.log() and "/host_nak" in server.log(), server.log()
    plugin.pod, plugin.version = os.uname().nodename, "0.9"
    server = make_server(lab, ready=False, certificates=readable, prefix=POD, more=io(plugin))
    assert server.wait() == 1
    assert '"0.9"' in server.log(), server.log()
    plugin.version, plugin.device = "0.1", "server1"
    server = make_server(lab, ready=False, certificates=readable, prefix=POD, more=io(plugin))
    assert server.wait() == 1
    assert "/xsk_map_fd,server0" in server.log() and "/fd_nak" in server.log(), server.log()
    plugin.device = "server0"
