"""The part of a guest's file system that is the same whatever it runs: busybox, its modules, the network's tools."""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from failure import Failure, output
from image import Image
from kernel import Kernel

# Programs of this machine that guests bring, and the packages that have them.
TOOLS = {"ip": "iproute2", "ss": "iproute2", "tc": "iproute2", "ethtool": "ethtool", "taskset": "util-linux"}


def tool(made: Image, name: str, package: str) -> None:
    """A program of this machine with its libraries."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if not found:
        raise Failure(f"{name} is missing: apt-get install {package}")
    made.program(Path(found).resolve(), f"/usr/sbin/{name}")


def system(root: Path, kernel: Kernel, modules: list[str]) -> Image:
    """A file system that boots, loads these modules and runs /tests. `root` is where QEMU was unpacked."""
    made = Image()
    for folder in ("/dev", "/proc", "/sys", "/run", "/tmp", "/root", "/busybox"):
        made.folder(folder)
    busybox = next(path for path in (root / "bin/busybox", root / "usr/bin/busybox") if path.exists())
    made.copy(busybox, "/busybox/busybox")
    for applet in output([busybox, "--list"], "busybox").split():
        if applet != "busybox":
            made.link(f"/busybox/{applet}", "busybox")
    made.copy(Path(__file__).resolve().parent / "init", "/init")
    closure = kernel.closure(modules)
    for name, content in closure:
        made.write(f"/modules/{name}", content)
    made.write("/modules/order", "".join(f"{name}\n" for name, _ in closure))
    for name, package in TOOLS.items():
        tool(made, name, package)
    # Where the loader finds libraries that are not in its own folders.
    made.copy(Path("/etc/ld.so.cache"))
    made.write("/etc/passwd", "root:x:0:0:root:/root:/busybox/sh\nnobody:x:65534:65534:nobody:/:/busybox/false\n")
    made.write("/etc/group", "root:x:0:\nnogroup:x:65534:\n")
    return made


def script(made: Image, environment: Mapping[str, str], lines: Sequence[str]) -> None:
    """What it runs: a shell script whose exit code is the guest's."""
    made.write("/environment", "".join(f"export {name}={value}\n" for name, value in environment.items()))
    made.write("/tests", "".join(f"{line}\n" for line in lines))
