"""Limits that the machine or its operator sets, met at start and while serving."""

import json
from pathlib import Path

from harness import clients
from harness.lab import Lab
from harness.paths import CLIP
from harness.server import address

# The UMEM is accounted to the user unless the process may lock memory (xdp_umem_account_pages in net/xdp/xdp_umem.c).
LITTLE_MEMORY = ("prlimit", "--memlock=65536:65536", "setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock")


def clip_comes(lab: Lab, certificates: Path) -> None:
    """A file comes whole."""
    (answer,) = clients.fetch(lab, "quicgo", address(lab.server["ipv4"]), certificates, ["/clip.mp4"])
    assert answer.sha256 == clients.sha256(CLIP)


def test_a_limit_of_locked_memory(make_lab, make_server, certificates: Path) -> None:
    lab = make_lab()
    refused = make_server(lab, mode="copy", prefix=LITTLE_MEMORY, ready=False)
    assert refused.wait() == 1
    for part in ("server0 queue 0", "UMEM", "RLIMIT_MEMLOCK"):
        assert part in refused.log(), refused.log()
    assert "xdp" not in lab.run("server", "ip", "link", "show", "server0")
    server = make_server(lab, mode="auto", prefix=LITTLE_MEMORY)
    assert server.obtained() == "udp"
    assert "RLIMIT_MEMLOCK" in server.log()
    clip_comes(lab, certificates)


def test_a_program_that_is_taken_off_by_force_is_not_fought_over(make_lab, make_server, certificates: Path) -> None:
    lab = make_lab()
    server = make_server(lab, mode="copy")
    listed = json.loads(lab.run("server", "bpftool", "--json", "link", "list"))
    (device,) = json.loads(lab.run("server", "ip", "-json", "-details", "link", "show", "server0"))
    (link,) = [link["id"] for link in listed if link.get("prog_id") == device["xdp"]["prog"]["id"]]
    lab.run("server", "bpftool", "link", "detach", "id", str(link))
    server.wait_log("XDP program detached by someone else")
    metrics = server.wait_for("kernel UDP", lambda m: m.sum("listen", io="udp") == 1)
    clip_comes(lab, certificates)
    before = metrics.sum("rx_kernel_packets_total")
    metrics = server.wait_for("packets by the kernel", lambda m: m.sum("rx_kernel_packets_total") > before)
    assert metrics.sum("io_reattach_total") == 0
