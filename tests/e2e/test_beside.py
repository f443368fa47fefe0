"""Beside other XDP programs on one interface: programs that libxdp's own tool puts there, and other servers."""

import functools
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import clients, kernel
from harness.lab import Lab
from harness.paths import CLIP, PEERS, run
from harness.server import Server, address

OURS = "expressway_udp"
SECOND_PORT = 8443

# Somebody else's program (tests/peers/no_ping.bpf.c), whose work can be seen: it drops ICMP over IPv4.
NO_PING = PEERS / "no_ping.o"


@pytest.fixture(autouse=True)
def bpffs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A BPF file system of the test's own, for the server and for libxdp."""
    folder = tmp_path / "bpf"
    folder.mkdir()
    run(["mount", "-t", "bpf", "bpf", folder])
    monkeypatch.setenv("LIBXDP_BPFFS", str(folder))
    yield folder
    run(["umount", "-l", folder])


@functools.cache
def loads_extensions() -> bool:
    """Whether the kernel lets libxdp replace a function of a program: security policies forbid it to root too."""
    lab = Lab(f"e2e-{os.getpid()}-extensions")
    try:
        loader = Loader(lab)
        loader.load(NO_PING)
        loads = "xdp_dispatcher" in lab.run("server", "xdp-loader", "status", "server0")
        lab.run("server", "xdp-loader", "unload", "server0", "--all")
        return loads
    finally:
        lab.down()


@pytest.fixture
def dispatcher(bpffs: Path) -> None:
    """Skips where libxdp itself cannot make a dispatcher."""
    if not loads_extensions():
        kernel.lacks("this kernel refuses BPF_PROG_TYPE_EXT")


class Loader:
    """xdp-loader, libxdp's own tool, in the server's namespace."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab

    def load(self, program: Path) -> None:
        self.lab.run("server", "xdp-loader", "load", "-m", "native", "server0", program)

    def programs(self) -> dict[str, int]:
        """The components that it lists, with their ids."""
        listed = self.lab.run("server", "xdp-loader", "status", "server0")
        return {name: int(number) for name, number in re.findall(r"=>\s+\d+\s+(\S+)\s+(\d+)", listed)}

    def unload(self, name: str) -> None:
        self.lab.run("server", "xdp-loader", "unload", "server0", "-i", str(self.programs()[name]))

    def pings(self) -> bool:
        """Whether the server answers a ping: not while no_ping runs."""
        command = self.lab.inside("client", "ping", "-c", "1", "-W", "1", self.lab.server["ipv4"])
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


def serves_by(server: Server, certificates: Path, way: str) -> None:
    """A file comes whole, and packets take that way."""
    before = server.metrics().sum(f"rx_{way}_packets_total")
    (listen,) = server.settings.listen
    (answer,) = clients.fetch(server.lab, "quicgo", listen, certificates, ["/clip.mp4"])
    assert answer.sha256 == clients.sha256(CLIP)
    server.wait_for(f"packets by {way}", lambda m: m.sum(f"rx_{way}_packets_total") > before)


def test_beside_a_program_that_is_there(make_lab, make_server, certificates, dispatcher, bpffs: Path) -> None:
    lab = make_lab()
    loader = Loader(lab)
    assert loader.pings()
    loader.load(NO_PING)
    assert not loader.pings()
    server = make_server(lab, mode="copy", beside=True)
    assert set(loader.programs()) == {"no_ping", OURS}
    serves_by(server, certificates, "xsk")
    assert not loader.pings(), "the other program goes on"
    server.stop()
    assert set(loader.programs()) == {"no_ping"}
    assert not loader.pings()
    loader.unload("no_ping")
    assert loader.pings()
    assert not list((bpffs / "xdp").iterdir())
    assert not list((bpffs / "expressway").iterdir())


@pytest.mark.parametrize("first_to_leave", ["no_ping", OURS])
def test_a_program_that_comes_later(
    make_lab, make_server, certificates, dispatcher, bpffs: Path, first_to_leave: str
) -> None:
    lab = make_lab()
    loader = Loader(lab)
    server = make_server(lab, mode="copy", beside=True, more={"io": {"dispatcher": '"always"'}})
    assert set(loader.programs()) == {OURS}
    serves_by(server, certificates, "xsk")
    loader.load(NO_PING)
    assert set(loader.programs()) == {"no_ping", OURS}
    serves_by(server, certificates, "xsk")
    assert not loader.pings()
    if first_to_leave == OURS:
        server.stop()
        assert set(loader.programs()) == {"no_ping"}
        assert not loader.pings()
        loader.unload("no_ping")
    else:
        loader.unload("no_ping")
        assert set(loader.programs()) == {OURS}
        assert loader.pings()
        serves_by(server, certificates, "xsk")
        server.stop()
    assert "xdp" not in lab.run("server", "ip", "link", "show", "server0")
    assert not list((bpffs / "xdp").iterdir())


def test_a_server_that_is_unloaded_by_others_goes_on(make_lab, make_server, certificates, dispatcher) -> None:
    lab = make_lab()
    server = make_server(lab, mode="copy", more={"io": {"dispatcher": '"always"'}})
    lab.run("server", "xdp-loader", "unload", "server0", "--all")
    server.wait_for("kernel UDP", lambda m: m.sum("listen", io="udp") == 1)
    serves_by(server, certificates, "kernel")


@pytest.mark.parametrize("again", ["auto", "always", "never"])
def test_what_a_kill_leaves_is_removed_by_the_next(
    make_lab, make_server, certificates, dispatcher, bpffs: Path, again: str
) -> None:
    lab = make_lab()
    loader = Loader(lab)
    always = {"io": {"dispatcher": '"always"'}}
    killed = make_server(lab, mode="copy", beside=True, more=always)
    stale = loader.programs()[OURS]
    killed.kill()
    assert loader.programs() == {OURS: stale}, "pinned: it outlives the process"
    server = make_server(lab, mode="copy", more={"io": {"dispatcher": f'"{again}"'}})
    serves_by(server, certificates, "xsk")
    if again == "always":
        assert loader.programs()[OURS] != stale
        assert len(loader.programs()) == 1
    assert f"program={stale}" in server.log()
    server.stop()
    assert not list((bpffs / "xdp").iterdir())
    assert not list((bpffs / "expressway").iterdir())


def test_what_a_kill_leaves_beside_others_is_removed_alone(
    make_lab, make_server, certificates, dispatcher
) -> None:
    lab = make_lab()
    loader = Loader(lab)
    loader.load(NO_PING)
    killed = make_server(lab, mode="copy", beside=True)
    stale = loader.programs()[OURS]
    killed.kill()
    server = make_server(lab, mode="copy", beside=True)
    assert set(loader.programs()) == {"no_ping", OURS}
    assert loader.programs()[OURS] != stale
    assert not loader.pings()
    serves_by(server, certificates, "xsk")


def test_two_servers_on_one_interface(make_lab, make_server, certificates, dispatcher) -> None:
    lab = make_lab(queues=2)
    always = '"always"'
    servers = [
        make_server(
            lab,
            mode="copy",
            listen=[address(lab.server["ipv4"], port)],
            admin=9180 + queue,
            beside=True,
            more={"io": {"dispatcher": always, "queues": f"[{queue}]"}},
        )
        for queue, port in ((0, 4433), (1, SECOND_PORT))
    ]
    assert [server.obtained() for server in servers] == ["copy", "copy"]
    for server in servers:
        # A flow comes by the queue that its hash says: both ways are taken after a few connections.
        for _ in range(8):
            serves_by_any(server, certificates)
        server.wait_for("packets by AF_XDP", lambda m: m.sum("rx_xsk_packets_total") > 0)
    first, second = servers
    first.stop()
    serves_by_any(second, certificates)
    # The place of one that has gone is free again.
    third = make_server(
        lab, mode="copy", beside=True, more={"io": {"dispatcher": always, "queues": "[0]"}}
    )
    serves_by_any(third, certificates)
    second.stop()
    third.settings.beside = False
    third.stop()


def serves_by_any(server: Server, certificates: Path) -> None:
    """A file comes whole, whichever way."""
    (listen,) = server.settings.listen
    (answer,) = clients.fetch(server.lab, "quicgo", listen, certificates, ["/small.txt"])
    assert answer.status == 200


def test_two_servers_on_the_same_queues(make_lab, make_server, certificates, dispatcher) -> None:
    lab = make_lab(queues=2)
    more = {"io": {"dispatcher": '"always"'}}
    first = make_server(lab, mode="copy", beside=True, more=more)
    listen = [address(lab.server["ipv4"], SECOND_PORT)]
    refused = make_server(lab, mode="copy", listen=listen, admin=9181, ready=False, beside=True, more=more)
    assert refused.wait() == 1
    assert "server0 queue 0" in refused.log() and "another AF_XDP socket" in refused.log(), refused.log()
    # `auto` takes what is left: nothing here, so the kernel serves, and says why.
    second = make_server(lab, mode="auto", listen=listen, admin=9181, beside=True, more=more)
    assert second.obtained() == "udp"
    assert "another AF_XDP socket" in second.log()
    serves_by(second, certificates, "kernel")
    serves_by(first, certificates, "xsk")
    assert list(Loader(lab).programs()) == [OURS], "one of them has a program there"


def test_a_second_server_without_a_dispatcher_says_how(make_lab, make_server) -> None:
    lab = make_lab()
    make_server(lab, mode="copy")
    listen = [address(lab.server["ipv4"], SECOND_PORT)]
    second = make_server(lab, mode="copy", listen=listen, admin=9181, ready=False, beside=True)
    assert second.wait() == 1
    assert "another expressway" in second.log() and "dispatcher" in second.log(), second.log()


def test_a_dispatcher_that_is_not_wanted_is_a_foreign_program(make_lab, make_server, dispatcher) -> None:
    lab = make_lab()
    loader = Loader(lab)
    loader.load(NO_PING)
    server = make_server(lab, mode="copy", ready=False, beside=True, more={"io": {"dispatcher": '"never"'}})
    assert server.wait() == 1
    assert "xdp_dispatcher" in server.log(), server.log()
    assert not loader.pings(), "left alone"


def test_without_a_bpf_file_system_the_error_says_what_to_mount(
    make_lab, make_server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIBXDP_BPFFS", str(tmp_path))
    lab = make_lab()
    server = make_server(lab, mode="copy", ready=False, more={"io": {"dispatcher": '"always"'}})
    assert server.wait() == 1
    assert f"mount -t bpf bpf {tmp_path}" in server.log(), server.log()


def test_a_queue_that_the_interface_has_not_is_named(make_lab, make_server) -> None:
    lab = make_lab(queues=2)
    server = make_server(lab, mode="copy", ready=False, more={"io": {"queues": "[0, 7]"}})
    assert server.wait() == 1
    assert "queue 7" in server.log() and "ethtool -l server0" in server.log(), server.log()


def test_a_kernel_that_refuses_extensions_is_said_to(make_lab, make_server, certificates) -> None:
    if loads_extensions():
        pytest.skip("this kernel loads them")
    lab = make_lab(queues=2)
    more = {"io": {"dispatcher": '"always"'}}
    refused = make_server(lab, mode="copy", ready=False, more=more)
    assert refused.wait() == 1
    assert "BPF_PROG_TYPE_EXT" in refused.log() and "security policy" in refused.log(), refused.log()
    server = make_server(lab, mode="auto", more=more)
    assert server.obtained() == "udp"
    assert "security policy" in server.log()
    serves_by(server, certificates, "kernel")


def test_a_second_server_on_auto_is_served_by_the_kernel(make_lab, make_server, certificates) -> None:
    lab = make_lab(queues=2)
    first = make_server(lab, mode="auto", more={"io": {"dispatcher": '"never"'}})
    listen = [address(lab.server["ipv4"], SECOND_PORT)]
    second = make_server(lab, mode="auto", listen=listen, admin=9181, beside=True)
    assert (first.obtained(), second.obtained()) == ("hybrid", "udp")
    assert "another expressway" in second.log()
    serves_by(second, certificates, "kernel")
    serves_by(first, certificates, "xsk")
    second.stop()
    serves_by(first, certificates, "xsk")
