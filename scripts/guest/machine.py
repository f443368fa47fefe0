"""A guest machine: QEMU with emulated processors (TCG), started, watched to its end, killed at its deadline."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from failure import Failure
from kernel import Kernel

# Some packages of a release with a merged /usr still say /lib.
LIBRARIES = ("usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu")


BOOT = ["console=ttyS0", "quiet", "panic=-1", "rdinit=/init", "random.trust_cpu=on"]
# Seconds between looks for lines of the third serial port.
PAUSE = 0.1


@dataclass(frozen=True)
class Processors:
    """How instructions are carried out."""

    qemu: Sequence[str]
    kernel: Sequence[str] = ()


# As fast as it goes: each processor is a thread.
FAST = Processors(["-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2"])
# One processor whose clock is the count of its instructions: one is a nanosecond of the guest. It never halts, for
# what the clock would jump over then is time that packets are on their way. Copies are loops: as one instruction
# (ERMS, FSRM) they would cost nothing. Interrupts are accounted to the task that they interrupt.
COUNTING = Processors(
    ["-accel", "tcg,thread=single", "-icount", "shift=0,sleep=off", "-cpu", "max,erms=off,fsrm=off", "-smp", "1"],
    ["idle=poll", "tsc=noirqtime"],
)


@dataclass(frozen=True)
class Machine:
    """QEMU as unpacked in `root`, processors, `memory` MiB, and devices."""

    root: Path
    kernel: Kernel
    devices: Sequence[str]
    memory: int = 1536
    processors: Processors = field(default=FAST)

    def command(self, archive: Path, verdict: Path, lines: Path | None = None) -> list[str]:
        """The command line. The first serial port is the console, the second takes the verdict, a third lines."""
        firmware = [word for name in ("seabios", "qemu") for word in ("-L", str(self.root / "usr/share" / name))]
        return [
            str(self.root / "usr/bin/qemu-system-x86_64"), *firmware,
            "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
            "-machine", "q35", *self.processors.qemu, "-m", str(self.memory),
            "-kernel", str(self.kernel.image), "-initrd", str(archive),
            # A panic reboots, and a reboot ends QEMU.
            "-append", " ".join([*BOOT, *self.processors.kernel]),
            "-serial", "stdio", "-serial", f"file:{verdict}", *(["-serial", f"file:{lines}"] if lines else []),
            *self.devices,
        ]  # fmt: skip

    def run(
        self,
        archive: Path,
        verdict: Path,
        deadline: float,
        prefix: Sequence[str] = (),
        console: TextIO = sys.stdout,
        lines: tuple[Path, Callable[[str], None]] | None = None,
    ) -> int:
        """Boots it, copies its console to a stream, and returns the exit code of its tests. `deadline` is in
        seconds. `lines` are the file of the third serial port and what takes each of its lines as it comes."""
        verdict.write_bytes(b"")
        if lines:
            lines[0].write_bytes(b"")
        environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(str(self.root / path) for path in LIBRARIES)}
        process = subprocess.Popen(
            [*prefix, *self.command(archive, verdict, lines[0] if lines else None)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=environment,
        )  # fmt: skip
        late = threading.Event()

        def end() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(deadline, end)
        timer.start()
        over = threading.Event()
        follower = threading.Thread(target=_follow, args=(*lines, over, process.kill) if lines else ())
        try:
            if lines:
                follower.start()
            assert process.stdout
            for line in process.stdout:
                text = line.decode(errors="replace").rstrip()
                print(text, file=console, flush=True)
            process.wait()
        finally:
            timer.cancel()
            if process.poll() is None:
                process.kill()
                process.wait()
            over.set()
            if lines:
                follower.join()
        if late.is_set():
            raise Failure(f"the guest did not finish within {deadline:.0f} s: see its last output")
        words = verdict.read_text().split()
        if len(words) != 2 or words[0] != "exit":
            raise Failure(f"the guest exited (QEMU: {process.returncode}) before its tests finished: see its console above")
        return int(words[1])


def _follow(file: Path, take: Callable[[str], None], over: threading.Event, end: Callable[[], None]) -> None:
    """Hands on the lines of a growing file until it is over; when nobody takes them any more, ends what writes."""
    with file.open("rb") as growing:
        rest = b""
        while True:
            last = over.wait(PAUSE)
            *whole, rest = (rest + growing.read()).split(b"\n")
            try:
                for line in whole:
                    take(line.decode(errors="replace").rstrip("\r"))
            except OSError:
                end()
                return
            if last:
                return
