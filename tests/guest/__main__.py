"""Runs tests in a guest machine whose network devices do zero-copy AF_XDP, which nothing on a host without
spare NICs does.

    python3 tests/guest [--binary FILE] [--fetch] [--test COMMAND] BED...

QEMU and the kernel come from Debian packages, into target/guest, once; the guest is emulated (TCG), so that no
virtualisation is needed. Exit code 0: all tests passed; 1: some did not; 2: the guest could not be run.
"""

import argparse
import fcntl
import json
import os
import platform
import shlex
import shutil
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

from beds import BEDS, Bed, network
from failure import Failure, output
from image import Image
from kernel import SERIES_VARIABLE, Kernel, choose, fetch, load
from machine import Machine
from packages import Packages, unpack

ROOT = Path(__file__).resolve().parents[2]
GUEST = ROOT / "target" / "guest"
PEERS = ROOT / "target" / "peers"
# Where the repository's files stand in the guest.
INSIDE = "/expressway"
TOOLS = ("ip", "ss", "tc", "ethtool")


def say(text: str) -> None:
    """A line about what happens."""
    print(f"guest: {text}", file=sys.stderr, flush=True)


def once(name: str, make) -> Path:  # type: ignore[no-untyped-def]
    """A folder of target/guest that `make` fills, the first time; `make` says what it is made of."""
    folder = GUEST / name
    stamp = folder / "packages.txt"
    if not stamp.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        made = make(folder)
        stamp.write_text("".join(f"{line}\n" for line in made))
    return folder


def qemu(packages: Packages) -> Path:
    """QEMU, its firmware, and busybox."""

    def make(folder: Path) -> list[str]:
        say("fetching QEMU")
        wanted = packages.needed("qemu-system-x86", "busybox-static", backports=True)
        archives = folder / "archives"
        unpack(packages.download(wanted, archives), folder)
        shutil.rmtree(archives)
        return wanted

    return once("qemu", make)


def kernel(packages: Packages, flavour: str) -> Kernel:
    """The kernel of a flavour."""
    series = os.environ.get(SERIES_VARIABLE, "")

    def make(folder: Path) -> list[str]:
        say(f"fetching {choose(packages, flavour)}")
        return fetch(packages, flavour, folder)

    return load(once(f"kernel-{flavour}{series and '-' + series}", make))


def conformance() -> Path:
    """The conformance tests' program, as the unit tests build it."""
    command = "cargo test --locked --workspace --all-features --test conformance --no-run --message-format=json"
    os.chdir(ROOT)
    for line in output(command.split(), "cargo").splitlines():
        message = json.loads(line)
        if message.get("executable") and message["target"]["name"] == "conformance":
            return Path(message["executable"])
    raise Failure("cargo built no test named conformance")


def end_to_end(made: Image) -> None:
    """What the end-to-end tests of a bed need besides: their files, libxdp's tool and its BPF objects."""
    made.tree(ROOT / "tests" / "e2e", f"{INSIDE}/tests/e2e", without=["__pycache__"])
    made.copy(ROOT / "tests" / "pytest.ini", f"{INSIDE}/tests/pytest.ini")
    made.tree(PEERS / "clip", f"{INSIDE}/target/peers/clip")
    made.copy(PEERS / "no_ping.o", f"{INSIDE}/target/peers/no_ping.o")
    for tool, package in (("tc", "iproute2"), ("xdp-loader", "xdp-tools")):
        found = shutil.which(tool, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
        if not found:
            raise Failure(f"{tool} is missing: apt-get install {package}")
        made.program(Path(found).resolve(), f"/usr/sbin/{tool}")
    made.tree(Path(f"/usr/lib/{platform.machine()}-linux-gnu/bpf"))


def image(bed: Bed, root: Path, kernel: Kernel, binary: Path, archive: Path) -> None:
    """Packs the guest's file system."""
    here = Path(__file__).resolve().parent
    made = Image()
    for folder in ("/dev", "/proc", "/sys", "/run", "/tmp", "/root", "/busybox"):
        made.folder(folder)
    busybox = next(path for path in (root / "bin/busybox", root / "usr/bin/busybox") if path.exists())
    made.copy(busybox, "/busybox/busybox")
    for applet in output([busybox, "--list"], "busybox").split():
        if applet != "busybox":
            made.link(f"/busybox/{applet}", "busybox")
    made.copy(here / "inside" / "init", "/init")
    modules = kernel.closure(bed.modules)
    for name, content in modules:
        made.write(f"/modules/{name}", content)
    made.write("/modules/order", "".join(f"{name}\n" for name, _ in modules))
    for tool in TOOLS:
        found = shutil.which(tool, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
        if not found:
            raise Failure(f"{tool} is missing: apt-get install iproute2 ethtool")
        made.program(Path(found).resolve(), f"/usr/sbin/{tool}")
    made.program(binary, f"{INSIDE}/bin/expressway")
    if bed.end_to_end:
        end_to_end(made)
    else:
        made.program(conformance(), f"{INSIDE}/bin/conformance")
    made.copy(PEERS / "quicgo", f"{INSIDE}/target/peers/quicgo")
    python = made.python(PEERS / "venv" / "bin" / "python", f"{INSIDE}/site")
    made.tree(ROOT / "tests" / "e2e" / "harness", f"{INSIDE}/tests/e2e/harness", without=["__pycache__"])
    made.tree(here / "inside", f"{INSIDE}/tests/guest/inside", without=["__pycache__"])
    # Where the loader finds libraries that are not in its own folders.
    made.copy(Path("/etc/ld.so.cache"))
    made.write("/etc/passwd", "root:x:0:0:root:/root:/busybox/sh\n")
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
    lines = [f"export {name}={value}\n" for name, value in environment.items()]
    lines.append(f'pytest() {{ {python} -m pytest -p no:cacheprovider --color=no -ra -v --durations=5 "$@"; }}\n')
    lines.append(f'conformance() {{ {INSIDE}/bin/conformance "$@"; }}\n')
    made.write("/environment", "".join(lines))
    # Each runs, whatever became of those before; one that fails makes the whole fail.
    steps = "".join(f"echo {shlex.quote(f'=== {test}')}\n{test} || failed=1\n" for test in bed.tests)
    made.write("/tests", f"failed=0\n{steps}(exit $failed)\n")
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
    with network(bed) as prefix:
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
        if platform.machine() != "x86_64":
            raise Failure(f"the guest is x86-64, and programs of this machine are {platform.machine()}")
        for needed, how in ((arguments.binary, "make build"), (PEERS / "quicgo", "scripts/peers python quicgo")):
            if not arguments.fetch and not needed.exists():
                raise Failure(f"{needed} is missing: {how}")
        GUEST.mkdir(parents=True, exist_ok=True)
        with (GUEST / "lock").open("w") as lock:
            # Two runs would fetch and pack into the same files.
            fcntl.flock(lock, fcntl.LOCK_EX)
            # All of them, whatever became of the first.
            codes = [run(name, arguments.binary, arguments.fetch, arguments.test) for name in arguments.bed]
    except Failure as failure:
        say(str(failure))
        return 2
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main())
