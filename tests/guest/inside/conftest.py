"""Fixtures for tests in the guest: its two devices as a lab, files to serve, servers that end with their test."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from device_lab import DeviceLab
from harness.captures import Dump
from harness.daemon import finish_all
from harness.paths import BINARY, HOST, run
from harness.server import Server, Settings, address

# Large enough that every ring of the data path is used again and again.
SIZE = 3_000_000


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ca.pem, cert.pem and key.pem."""
    folder = tmp_path_factory.mktemp("certificates")
    run([BINARY, "cert", "--host", HOST, "--out", folder])
    return folder


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one file of bytes that nothing compresses and no part of which repeats."""
    folder = tmp_path_factory.mktemp("root")
    (folder / "noise.bin").write_bytes(random.Random(1).randbytes(SIZE))
    return folder


@pytest.fixture
def lab() -> Iterator[DeviceLab]:
    """The two devices in namespaces."""
    made = DeviceLab()
    yield made
    made.down()


@pytest.fixture
def make_server(lab: DeviceLab, certificates: Path, root: Path, tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Starts a server on both families and waits until it is ready; in the end it has to stop cleanly."""
    servers: list[Server] = []

    def make(**settings) -> Server:  # type: ignore[no-untyped-def]
        listen = [address(lab.server["ipv4"]), address(lab.server["ipv6"])]
        folder = tmp_path / f"server-{len(servers)}"
        folder.mkdir()
        settings = {"certificates": certificates, "root": root, "listen": listen, **settings}
        servers.append(Server(lab, folder, Settings(**settings)))
        return servers[-1].wait_ready()

    yield make
    for server in servers:
        # One that a test has killed has nothing left to stop.
        if server.process.poll() is None:
            server.stop()


@pytest.fixture
def make_dump(lab: DeviceLab, tmp_path: Path) -> Iterator[Callable[..., Dump]]:
    """Starts captures of the server's device; at the end they have to stop cleanly."""
    running: list[Dump] = []

    def make(*words: str | Path) -> Dump:
        running.append(Dump(lab, tmp_path / f"dump-{len(running)}", "server", "-i", "server0", *words))
        return running[-1]

    yield make
    finish_all(running)
