"""Runs the benchmark suite in a guest machine whose network devices do zero-copy AF_XDP. `expressway bench --bed
guest` starts it.

    python3 scripts/guest [--counting] [--fetch] [--program FILE]... [--file FILE]... [-- ARGUMENT...]

The first program runs in the guest with the arguments, as root, among the others and the files. What it writes to
/dev/ttyS2 comes out of standard output line by line, its console with its standard error out of ours; its standard
output is dropped. QEMU and the kernel come
from Debian packages, into target/guest, once. Exit code: the program's; 2 where the guest could not be run.
"""

import argparse
import json
import shlex
import signal
import sys
import time
from pathlib import Path

from devices import VIRTIO_MODULES, ZERO_COPY, network, on_taps
from failure import Failure
from machine import COUNTING, FAST, Machine
from packages import Packages
from store import GUEST, kernel, locked, qemu, say
from system import script, system

FLAVOUR = "cloud-amd64"
PROGRAMS = "/expressway/bin"
FILES = "/expressway/files"


def run(arguments: argparse.Namespace) -> int:
    """One guest from nothing to its exit code."""
    with locked():
        packages = Packages(GUEST / "apt")
        root, its_kernel = qemu(packages), kernel(packages, FLAVOUR)
    if arguments.fetch:
        return 0
    made = system(root, its_kernel, VIRTIO_MODULES)
    for needed in (*arguments.program, *arguments.file):
        if not needed.exists():
            raise Failure(f"{needed}: no such file")
    for program in arguments.program:
        made.program(program, f"{PROGRAMS}/{program.name}")
    for file in arguments.file:
        made.copy(file, f"{FILES}/{file.name}")
    command = shlex.join([f"{PROGRAMS}/{arguments.program[0].name}", *arguments.arguments])
    script(made, {}, ["stty -F /dev/ttyS2 raw -echo", f"cd {FILES} 2>/dev/null || cd /", f"{command} >/dev/null"])
    archive, verdict, lines = (GUEST / f"bench.{kind}" for kind in ("cpio", "verdict", "lines"))
    made.pack(archive)
    processors = COUNTING if arguments.counting else FAST
    # Taps, and no emulated hub, for what these take: checksums and segments that the guest leaves to its device.
    devices = on_taps(1, f"virtio-net-pci,{ZERO_COPY}", f"virtio-net-pci,{ZERO_COPY}")
    versions = (root / "packages.txt").read_text().split()
    version = next((line.split("=")[1] for line in versions if line.startswith("qemu-system-x86=")), "unknown")
    about = {"qemu": version, "processors": " ".join(processors.qemu), "kernel_options": " ".join(processors.kernel)}
    print(json.dumps({"guest": about}), flush=True)
    say(f"Linux {its_kernel.release} in QEMU {version}")
    started = time.monotonic()
    with network(taps=True, multi_queue=False) as prefix:
        machine = Machine(root, its_kernel, devices, processors=processors)
        take = (lines, lambda line: print(line, flush=True))
        code = machine.run(archive, verdict, arguments.deadline, prefix, sys.stderr, take)
    say(f"exited with code {code} in {time.monotonic() - started:.0f} s")
    return code


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="scripts/guest", description=__doc__.split("\n\n")[0])
    parser.add_argument("--counting", action="store_true", help="a processor whose clock counts its instructions")
    parser.add_argument("--fetch", action="store_true", help="fetch QEMU and the kernel, and run nothing")
    parser.add_argument("--program", type=Path, action="append", default=[], help="goes into the guest; the first runs")
    parser.add_argument("--file", type=Path, action="append", default=[], help="goes into the folder where it runs")
    parser.add_argument("--deadline", type=float, default=3600, help="seconds until it is ended (%(default).0f)")
    parser.add_argument("arguments", nargs="*", help="of the program")
    arguments = parser.parse_args()
    if not arguments.program and not arguments.fetch:
        parser.error("name a --program")
    # What was started ends with this, also when a run is cancelled.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(143))
    try:
        with locked("bench.lock"):
            return run(arguments)
    except Failure as failure:
        say(str(failure))
        return 2


if __name__ == "__main__":
    sys.exit(main())
