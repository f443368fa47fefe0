"""What guests are made of, in target/guest: QEMU and kernels, fetched once."""

import fcntl
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from failure import Failure
from kernel import SERIES_VARIABLE, Kernel, choose, fetch, load
from packages import Packages, unpack

ROOT = Path(__file__).resolve().parents[2]
GUEST = ROOT / "target" / "guest"


def say(text: str) -> None:
    """A line about what happens."""
    print(f"guest: {text}", file=sys.stderr, flush=True)


@contextmanager
def locked(what: str = "lock") -> Iterator[None]:
    """Alone with target/guest/`what`: two runs would fetch, or pack the guest of a bed, into the same files."""
    if platform.machine() != "x86_64":
        raise Failure(f"the guest is x86-64, but programs of this machine are {platform.machine()}")
    GUEST.mkdir(parents=True, exist_ok=True)
    with (GUEST / what).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def once(name: str, make: Callable[[Path], list[str]]) -> Path:
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
        image = choose(packages, flavour)
        say(f"fetching {image}")
        return fetch(packages, image, folder)

    return load(once(f"kernel-{flavour}{series and '-' + series}", make))
