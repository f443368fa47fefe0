"""Runs tests in a guest machine whose network devices do zero-copy AF_XDP, which nothing on a host without
spare NICs does.

    python3 tests/guest [--binary FILE] [--fetch] [--test COMMAND] BED...

Exit code 0: all tests passed; 1: some failed; 2: the guest could not be run.

The guest is emulated (QEMU, TCG), so no virtualisation is needed. Its two NICs are wired to each other; one for the
server and one for the client are moved into namespaces, where the conformance suite and the gateway with an independent
client run. Zero-copy is believed only if XDP_OPTIONS reports it to us and `sock_diag` reports it to `ss`. QEMU and a
kernel new enough (6.18: older virtio_net has no zero-copy here) come from Debian packages that apt verifies and nobody
installs, into target/guest, once; the guest's file system is an initramfs of this machine's programs at their own paths.

virtio-net is a part of `make test`. igb, whose link bounces when a program is attached, and several queues need a larger
download and are `make test-drivers`. A second guest has what a build machine's kernel may lack: XDP dispatchers, bonds,
VLAN interfaces; a test that is skipped elsewhere for want of them fails there.
"""

import argparse
import json
import os
import platform
import shlex
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "guest"))

from beds import BEDS, Bed  # noqa: E402
from devices import network  # noqa: E402
from failure import Failure, output  # noqa: E402
from image import Image  # noqa: E402
from kernel import Kernel  # noqa: E402
from machine import Machine  # noqa: E402
from packages import Packages  # noqa: E402
from store import GUEST, ROOT, kernel, locked, qemu, say  # noqa: E402
from system import script, system, tool  # noqa: E402

PEERS = ROOT / "target" / "peers"
# Where the repository's files stand in the guest.
INSIDE = "/expressway"
LIBRARIES = Path(f"/usr/lib/{platform.machine()}-linux-gnu")
# The tests of captures: build machines may refuse the programs that they attach.
CAPTURE = ["kernel", "xdp"]


def built(*names: str) -> list[Path]:
    """The programs of integration tests, as the unit tests build them."""
    selection = " ".join(f"--test {name}" for name in names)
    command = f"cargo test --locked --workspace --all-features {selection} --no-run --message-format=json"
    os.chdir(ROOT)
    found = {}
    for line in output(command.split(), "cargo").splitlines():
        message = json.loads(line)
        if message.get("executable"):
            found[message["target"]["name"]] = Path(message["executable"])
    missing = set(names) - set(found)
    if missing:
        raise Failure(f"cargo built no test named {', '.join(missing)}")
    return [found[name] for name in names]


def end_to_end(made: Image) -> None:
    """What the end-to-end tests of a bed need besides: their files, libxdp's tool and its BPF objects."""
    made.tree(ROOT / "tests" / "e2e", f"{INSIDE}/tests/e2e", without=["__pycache__"])
    made.copy(ROOT / "tests" / "pytest.ini", f"{INSIDE}/tests/pytest.ini")
    made.tree(PEERS / "clip", f"{INSIDE}/target/peers/clip")
    made.copy(PEERS / "no_ping.o", f"{INSIDE}/target/peers/no_ping.o")
    tool(made, "xdp-loader", "xdp-tools")
    tool(made, "tcpdump", "tcpdump")
    made.tree(LIBRARIES / "bpf")


def testpmd(made: Image) -> None:
    """DPDK's testpmd with its AF_XDP driver, which loads a program by libxdp."""
    tool(made, "dpdk-testpmd", "dpdk-dev")
    # It is linked to the bus. The drivers it opens by each name that they have here, and each may come once.
    for driver in ("mempool_ring", "net_af_xdp"):
        found = list(LIBRARIES.glob(f"dpdk/pmds-*/librte_{driver}.so"))
        if not found:
            raise Failure(f"DPDK's librte_{driver}.so is missing: apt-get install dpdk-dev")
        made.program(found[0])
    made.tree(LIBRARIES / "bpf")


def image(bed: Bed, root: Path, kernel: Kernel, binary: Path, archive: Path) -> None:
    """Packs the guest's file system."""
    here = Path(__file__).resolve().parent
    made = system(root, kernel, bed.modules)
    made.program(binary, f"{INSIDE}/bin/expressway")
    if bed.end_to_end:
        end_to_end(made)
        for name, program in zip(CAPTURE, built(*CAPTURE), strict=True):
            made.program(program, f"{INSIDE}/bin/{name}")
    else:
        made.program(*built("conformance"), f"{INSIDE}/bin/conformance")
    if bed.testpmd:
        testpmd(made)
    # Filters load it by name.
    made.program(LIBRARIES / "libpcap.so.0.8")
    made.copy(PEERS / "quicgo", f"{INSIDE}/target/peers/quicgo")
    python = made.python(PEERS / "venv" / "bin" / "python", f"{INSIDE}/site")
    made.tree(ROOT / "tests" / "e2e" / "harness", f"{INSIDE}/tests/e2e/harness", without=["__pycache__"])
    made.tree(here / "inside", f"{INSIDE}/tests/guest/inside", without=["__pycache__"])
    environment = {
        "EXPRESSWAY_BIN": f"{INSIDE}/bin/expressway",
        "EXPRESSWAY_REQUIRE_ROOT_TESTS": "1",
        "EXPRESSWAY_REQUIRE_KERNEL_TESTS": "1",
        "EXPRESSWAY_TEST_CLIENTS": "quicgo",
        "EXPRESSWAY_TEST_DEVICES": "'eth0 eth1'",
        "EXPRESSWAY_TEST_QUEUES": str(bed.queues),
        "EXPRESSWAY_TEST_LIMIT": "100",
        "PYTHONPATH": f"{INSIDE}/site:{INSIDE}/tests/e2e",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    # Each runs, whatever became of those before; one that fails makes the whole fail.
    steps = [line for test in bed.tests for line in (f"echo {shlex.quote(f'=== {test}')}", f"{test} || failed=1")]
    pytest = f"{python} -m pytest -p no:cacheprovider --color=no -ra -v --durations=5"
    functions = [f'pytest() {{ {pytest} "$@"; }}', f'conformance() {{ {INSIDE}/bin/conformance "$@"; }}']
    script(made, environment, [*functions, "failed=0", *steps, "(exit $failed)"])
    made.pack(archive)


def run(name: str, binary: Path, fetch_only: bool, tests: list[str]) -> int:
    """One guest from nothing to its exit code. `tests` stand in for the bed's own."""
    bed = replace(BEDS[name], tests=tests) if tests else BEDS[name]
    packages = Packages(GUEST / "apt")
    root, its_kernel = qemu(packages), kernel(packages, bed.flavour)
    if fetch_only:
        return 0
    archive, verdict = GUEST / f"{name}.cpio", GUEST / f"{name}.verdict"
    image(bed, root, its_kernel, binary, archive)
    say(f"{name}: {bed.about}; Linux {its_kernel.release}")
    started = time.monotonic()
    with network(bed.taps) as prefix:
        code = Machine(root, its_kernel, bed.devices, bed.memory).run(archive, verdict, bed.deadline, prefix)
    say(f"{name}: {'passed' if code == 0 else f'failed with exit code {code}'} in {time.monotonic() - started:.0f} s")
    return code


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="tests/guest", description=__doc__.split("\n\n")[0])
    parser.add_argument("bed", nargs="+", choices=list(BEDS), metavar="BED", help=", ".join(BEDS))
    default = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release" / "expressway"
    binary = Path(os.environ.get("EXPRESSWAY_BIN", default))
    parser.add_argument("--binary", type=Path, default=binary, help="the gateway (%(default)s)")
    parser.add_argument("--fetch", action="store_true", help="fetch QEMU and the kernel, and run nothing")
    parser.add_argument("--test", action="append", default=[], help="run this command line in the guest instead")
    arguments = parser.parse_args()
    # What was started ends with this, also when a job is cancelled.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        for needed, how in ((arguments.binary, "make build"), (PEERS / "quicgo", "scripts/peers python quicgo")):
            if not arguments.fetch and not needed.exists():
                raise Failure(f"{needed} is missing: {how}")
        with locked():
            # All of them, whatever became of the first.
            codes = [run(name, arguments.binary, arguments.fetch, arguments.test) for name in arguments.bed]
    except Failure as failure:
        say(str(failure))
        return 2
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main())
