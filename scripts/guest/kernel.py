"""The guest's kernel: chosen from the index, its image, and the modules that its devices need in load order."""

import lzma
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from failure import Failure
from packages import Packages, unpack_some

# The oldest whose virtio_net and igb both do zero-copy AF_XDP for us: 6.12's virtio_net answers EOPNOTSUPP.
OLDEST = (6, 18)
# Asks for another series, `7.3`, than the oldest of the index that will do.
SERIES_VARIABLE = "EXPRESSWAY_GUEST_KERNEL"


@dataclass(frozen=True)
class Kernel:
    """A kernel unpacked."""

    release: str
    image: Path
    modules: Path

    def closure(self, names: list[str]) -> list[tuple[str, bytes]]:
        """Modules and what they depend on, name and content, in the order to load them. What is built in or
        does not exist in this kernel is left out."""
        files = {path.name.split(".")[0].replace("-", "_"): path for path in self.modules.rglob("*.ko*")}
        done: dict[str, bytes] = {}

        def add(name: str) -> None:
            path = files.get(name.replace("-", "_"))
            if path is None or path.name in done:
                return
            content = _content(path)
            for dependency in _depends(content):
                add(dependency)
            done[path.name] = content

        for name in names:
            add(name)
        return [(name.split(".")[0] + ".ko", content) for name, content in done.items()]


def choose(packages: Packages, flavour: str) -> str:
    """The image package: the latest of the oldest series that will do, which is the best proven one."""
    pattern = re.compile(rf"linux-image-(\d+)\.(\d+)\.(\d+)\+[a-z0-9.]+-{flavour}")
    found = [
        (tuple(int(number) for number in match.groups()), name)
        for name in packages.names("linux-image-")
        if (match := pattern.fullmatch(name))
    ]
    asked = os.environ.get(SERIES_VARIABLE)
    series = {version[:2] for version, _ in found if version[:2] >= OLDEST}
    wanted = tuple(int(part) for part in asked.split(".")) if asked else min(series, default=())
    if wanted not in series:
        have = ", ".join(".".join(map(str, one)) for one in sorted(series)) or "none"
        raise Failure(f"no kernel {asked or '6.18 or newer'} for {flavour} in the index; there are: {have}")
    return max((version, name) for version, name in found if version[:2] == wanted)[1]


def latest(names: Iterable[str], flavour: str) -> dict[tuple[int, int], str]:
    """Of each series, the package of its latest image, old and new forms of names alike."""
    pattern = re.compile(rf"linux-image-(\d+)\.(\d+)\.(\d+)([-+][a-z0-9.]+)?-{flavour}")
    found: dict[tuple[int, int], tuple[list[int], str]] = {}
    for name in names:
        if match := pattern.fullmatch(name):
            order = [int(number) for number in re.findall(r"\d+", match[3] + (match[4] or ""))]
            series = (int(match[1]), int(match[2]))
            found[series] = max(found.get(series, ([], "")), (order, name))
    return {series: name for series, (_, name) in sorted(found.items())}


def fetch(packages: Packages, image: str, folder: Path) -> list[str]:
    """Puts the kernel of an image package into a folder; returns what it was made of."""
    # Newer kernels have image and modules in packages of their own.
    parts = [name for name in packages.depends(image) if name.startswith(("linux-binary-", "linux-modules-"))]
    archives = packages.download([image, *parts], folder / "archives")
    for archive in archives:
        unpack_some(archive, ["vmlinuz*", "*.ko", "*.ko.xz"], folder)
        archive.unlink()
    return [archive.stem for archive in archives]


def load(folder: Path) -> Kernel:
    """The kernel in a folder."""
    # Linux 7.3 stands among its modules.
    images = [*folder.glob("boot/vmlinuz-*"), *folder.glob("**/modules/*/vmlinuz")]
    if not images:
        raise Failure(f"{folder}: no kernel image in {', '.join(path.name for path in folder.iterdir())}; remove the folder")
    image = images[0]
    release = image.parent.name if image.name == "vmlinuz" else image.name.removeprefix("vmlinuz-")
    (modules,) = [path for path in folder.glob("**/modules/*") if path.name == release and not path.is_symlink()]
    return Kernel(release, image, modules)


def _content(path: Path) -> bytes:
    content = path.read_bytes()
    return lzma.decompress(content) if path.suffix == ".xz" else content


def _depends(module: bytes) -> list[str]:
    """The `depends` field of the section .modinfo."""
    match = re.search(rb"\0depends=([^\0]*)\0", module)
    return [name.decode() for name in match[1].split(b",") if name] if match else []
