"""Runs tests in a guest machine whose network devices do zero-copy AF_XDP, which nothing on a host without
spare NICs does.

    python3 tests/guest [--binary FILE] [--fetch] [--test COMMAND] BED...

Exit code 0: all tests passed; 1: some failed; 2: the guest could not be run.

The guest is emulated (QEMU, TCG), so no virtualisation is needed. Its two NICs are wired to each other; one for the
server and one for the client are moved into namespaces, where the conformance suite and the gateway with an independent
client run. Zero-copy is believed only if XDP_OPTIONS reports it to us and `sock_diag` reports it to `ss`. QEMU and a
kernel new enough (6.18: older virtio_net has no zero-copy here) come from Debian packages that apt verifies and nobody
installs, into target/guest, once; the guest's file system is an initramfs of this machine's programs at their own paths.

The bed `virtio` is a part of `make test`. `make test-guest`, which CI runs too, has the rest of virtio-net and a guest with what
a build machine's kernel may lack: XDP dispatchers, bonds, VLAN interfaces; a test that is skipped elsewhere for want of them
fails there. igb, whose link bounces when a program is attached, and several queues need a larger download and are
`make test-drivers`.
"""

import argparse
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "guest"))

from beds import BEDS  # noqa: E402
from contents import PEERS, image  # noqa: E402
from devices import network  # noqa: E402
from failure import Failure  # noqa: E402
from machine import Machine  # noqa: E402
from packages import Packages  # noqa: E402
from store import GUEST, ROOT, kernel, locked, qemu, say  # noqa: E402


def run(name: str, binary: Path, fetch_only: bool, tests: list[str]) -> int:
    """One guest from nothing to its exit code. `tests` stand in for the bed's own."""
    bed = replace(BEDS[name], tests=tests) if tests else BEDS[name]
    with locked():
        packages = Packages(GUEST / "apt")
        root, its_kernel = qemu(packages), kernel(packages, bed.flavour)
    if fetch_only:
        return 0
    archive, verdict = GUEST / f"{name}.cpio", GUEST / f"{name}.verdict"
    with locked(f"{name}.lock"):
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
        # All of them, whatever became of the first.
        codes = [run(name, arguments.binary, arguments.fetch, arguments.test) for name in arguments.bed]
    except Failure as failure:
        say(str(failure))
        return 2
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main())
