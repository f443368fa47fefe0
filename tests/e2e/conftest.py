"""Fixtures: a certificate, a web root with real clips, labs and servers that end with their test."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import foreign, origins
from harness.agent import Agent, agents
from harness.balance import Balancer, Network
from harness.browser import Browser
from harness.daemon import finish_all
from harness.fanout import FEED_PORT, TCP_PORT, Fanout, fanouts
from harness.guard import Guard
from harness.lab import Lab
from harness.paths import BINARY, CLIP, HOST, LONG_CLIP, PEERS, open_to_all, run
from harness.rtp import MediaRelay
from harness.server import Server, Settings, address

PAGE = """<!doctype html>
<title>clip</title>
<video id="video" src="/long.mp4" muted preload="auto"></video>
"""


def pytest_sessionstart() -> None:
    """Refuses to run where it could not, rather than to fail in each test."""
    if os.geteuid() != 0:
        if os.environ.get("EXPRESSWAY_REQUIRE_ROOT_TESTS") == "1":
            pytest.exit("EXPRESSWAY_REQUIRE_ROOT_TESTS=1, but not root", 1)
        return
    missing = [path for path in (BINARY, CLIP, LONG_CLIP, PEERS / "quicgo") if not path.exists()]
    if missing:
        pytest.exit(f"missing {', '.join(map(str, missing))}: run make build and scripts/peers", 1)


@pytest.fixture(scope="session", autouse=True)
def root_only() -> None:
    """Each test makes network namespaces."""
    if os.geteuid() != 0:
        pytest.skip("needs root (CAP_NET_ADMIN)", allow_module_level=True)


# Files whose tests run one after another when several processes share the tests.
IN_TURN = {
    # Each takes the cores, and looks for what one before it could have left.
    **dict.fromkeys(("test_bench.py", "test_bench_packets.py", "test_fanout_auto.py", "test_nics.py"), "benchmarks"),
    # The kernel limits the locked memory of all processes of a user.
    "test_device_plugin.py": "locked memory",
}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log):
    """Each process takes the next test when it is done with one; the longest of IN_TURN come first."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return IN_TURN.get(Path(nodeid.split("::")[0]).name, nodeid)

    return Scheduling(config, log)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ca.pem, cert.pem and key.pem for `edge.test`."""
    folder = tmp_path_factory.mktemp("certificates")
    run([BINARY, "cert", "--host", HOST, "--out", folder])
    return folder


@pytest.fixture
def processes() -> Iterator[Callable[..., origins.Process]]:
    """Starts origins; they end with their test."""
    started: list[origins.Process] = []

    def start(process: origins.Process) -> origins.Process:
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is served: two clips and a page that plays one."""
    folder = tmp_path_factory.mktemp("root")
    shutil.copy(CLIP, folder / "clip.mp4")
    shutil.copy(LONG_CLIP, folder / "long.mp4")
    (folder / "small.txt").write_text("A small file.\n")
    (folder / "player.html").write_text(PAGE)
    # Everyone may read it: one test serves as an ordinary user.
    open_to_all(folder)
    return folder


@pytest.fixture
def readable(certificates: Path, tmp_path: Path) -> Path:
    """The certificates where everyone may read them."""
    copy = shutil.copytree(certificates, tmp_path / "readable")
    (copy / "key.pem").chmod(0o644)
    open_to_all(copy)
    return copy


@pytest.fixture
def foreign_object() -> Path:
    """A BPF object with somebody else's XDP program."""
    return foreign.BUILT


@pytest.fixture
def make_lab() -> Iterator[Callable[..., Lab]]:
    """Makes labs; they are gone when the test is, with all that ran in them."""
    labs: list[Lab] = []

    def make(**options: str | int | bool) -> Lab:
        lab = Lab(f"e2e-{os.getpid()}-{len(labs)}", **options)
        labs.append(lab)
        return lab

    yield make
    faults = []
    for lab in labs:
        try:
            lab.finish()
        except Exception as fault:  # told below, when all are gone
            faults.append(fault)
    if faults:
        raise faults[0] if len(faults) == 1 else ExceptionGroup("labs at the end of their test", faults)


ServerMaker = Callable[..., Server]


@pytest.fixture
def start_agent(make_lab, tmp_path: Path) -> Iterator[Callable[..., Agent]]:
    """Starts agents, which end after those that they serve; at the end each has to be alive and to stop cleanly."""
    with agents(tmp_path) as start:
        yield start


@pytest.fixture
def make_server(make_lab, start_agent, certificates: Path, root: Path, tmp_path: Path) -> Iterator[ServerMaker]:
    """Starts servers and waits until they are ready; at the end each has to be alive, unless the test has ended it, and
    to stop cleanly."""
    servers: list[Server] = []

    def make(lab: Lab, *, ready: bool = True, prefix: tuple[str, ...] = (), **settings) -> Server:
        settings.setdefault("certificates", certificates)
        settings.setdefault("root", root)
        settings.setdefault("listen", [address(lab.server["ipv4"])])
        folder = tmp_path / f"server-{len(servers)}"
        folder.mkdir()
        server = Server(lab, folder, Settings(**settings), prefix)
        servers.append(server)
        return server.wait_ready() if ready else server

    yield make
    finish_all(servers)


@pytest.fixture
def make_fanout(make_lab, start_agent, tmp_path: Path) -> Iterator[Callable[..., Fanout]]:
    """Starts fan-outs with len32 framing; at the end each has to be alive and to stop cleanly, as servers have to."""
    with fanouts(tmp_path) as start:

        def make(lab: Lab, *flags: str, feed: str | None = None, prefix: tuple[str, ...] = (), ready: bool = True) -> Fanout:
            host = lab.server["ipv4"]
            words = ["--udp", address(feed or host, FEED_PORT), "--framing", "len32", *flags]
            if "--tcp" not in flags:
                words += ["--tcp", address(host, TCP_PORT)]
            fanout = start(lab, *words, prefix=prefix)
            return fanout.wait_ready() if ready else fanout

        yield make


@pytest.fixture
def make_guard(make_lab, tmp_path: Path) -> Iterator[Callable[..., Guard]]:
    """Starts filters; at the end each has to be alive, unless the test has ended it, and to stop cleanly."""
    running: list[Guard] = []

    def make(lab: Lab, text: str) -> Guard:
        running.append(Guard(lab, tmp_path / "guard", text))
        return running[-1]

    yield make
    finish_all(running)


@pytest.fixture
def network() -> Iterator[Network]:
    """A client, a balancer and nodes, with servers on all of these."""
    made = Network(0)
    for name in made.nodes:
        made.serve(name)
    yield made
    made.down()


@pytest.fixture
def make_balancer(network: Network, tmp_path: Path) -> Iterator[Callable[..., Balancer]]:
    """Starts balancers, each of which has to be alive at the end unless the test ended it, and to stop cleanly."""
    running: list[Balancer] = []

    def make(text: str, *words: str) -> Balancer:
        running.append(Balancer(network, tmp_path / f"balancer-{len(running)}", text, *words))
        running[-1].wait_ready()
        return running[-1]

    yield make
    finish_all(list(running))


@pytest.fixture
def bpffs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A BPF file system of the test's own."""
    folder = tmp_path / "bpffs"
    folder.mkdir()
    run(["mount", "-t", "bpf", "none", folder])
    monkeypatch.setenv("LIBXDP_BPFFS", str(folder))
    yield folder
    run(["umount", folder])


@pytest.fixture
def open_browser(tmp_path: Path, certificates: Path) -> Iterator[Callable[[Lab], Browser]]:
    """Opens browsers that end with the test."""
    browsers: list[Browser] = []

    def open_one(lab: Lab, force_quic: bool = True) -> Browser:
        folder = tmp_path / f"browser-{len(browsers)}"
        folder.mkdir()
        browsers.append(Browser(lab, folder, lab.server["ipv4"], certificates, force_quic=force_quic))
        return browsers[-1]

    yield open_one
    for browser in browsers:
        browser.close()


@pytest.fixture
def make_relay(tmp_path: Path) -> Iterator[Callable[..., MediaRelay]]:
    """Starts relays; at the end each has to be alive, unless the test has ended it, and to stop cleanly."""
    running: list[MediaRelay] = []

    def make(lab: Lab, rooms: str, *flags: str, count: int = 1, **options) -> MediaRelay:
        running.append(MediaRelay(lab, tmp_path / f"relay-{len(running)}", rooms, *flags, **options))
        return running[-1].wait_ready(count)

    yield make
    finish_all(running)
