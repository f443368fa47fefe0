"""A guest machine: QEMU with emulated processors (TCG), started, watched to its end, killed at its deadline."""

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from failure import Failure
from kernel import Kernel

# Some packages of a release with a merged /usr still say /lib.
LIBRARIES = ("usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu")


@dataclass(frozen=True)
class Machine:
    """QEMU as unpacked in `root`, two processors, `memory` MiB, and devices."""

    root: Path
    kernel: Kernel
    devices: Sequence[str]
    memory: int = 1536

    def command(self, archive: Path, verdict: Path) -> list[str]:
        """The command line. The first serial port is the console, the second takes the verdict."""
        firmware = [word for name in ("seabios", "qemu") for word in ("-L", str(self.root / "usr/share" / name))]
        return [
            str(self.root / "usr/bin/qemu-system-x86_64"), *firmware,
            "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
            "-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", str(self.memory),
            "-kernel", str(self.kernel.image), "-initrd", str(archive),
            # A panic reboots, and a reboot ends QEMU.
            "-append", "console=ttyS0 quiet panic=-1 rdinit=/init random.trust_cpu=on",
            "-serial", "stdio", "-serial", f"file:{verdict}",
            *self.devices,
        ]  # fmt: skip

    def run(self, archive: Path, verdict: Path, deadline: float, prefix: Sequence[str] = ()) -> int:
        """Boots it, copies its console to standard output, and returns the exit code of its tests. `deadline` is
        in seconds."""
        verdict.write_bytes(b"")
        environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(str(self.root / path) for path in LIBRARIES)}
        process = subprocess.Popen(
            [*prefix, *self.command(archive, verdict)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=environment,
        )  # fmt: skip
        late = threading.Event()

        def end() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(deadline, end)
        timer.start()
        try:
            assert process.stdout
            for line in process.stdout:
                text = line.decode(errors="replace").rstrip()
                print(text, file=sys.stdout, flush=True)
            process.wait()
        finally:
            timer.cancel()
            if process.poll() is None:
                process.kill()
                process.wait()
        if late.is_set():
            raise Failure(f"the guest was not done within {deadline:.0f} s: see what it said last")
        words = verdict.read_text().split()
        if len(words) != 2 or words[0] != "exit":
            raise Failure(f"the guest ended (QEMU: {process.returncode}) before its tests did: see its console above")
        return int(words[1])
