"""The guest's file system: an initramfs with what the tests run, at the paths where this machine has it.

A program brings the shared libraries that `ldd` names; Python brings its standard library. busybox stands behind
everything else. The archive is cpio in its "newc" form (Documentation/driver-api/early-userspace/buffer-format.rst).
"""

import json
import os
import re
import stat
import subprocess
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import BinaryIO

from failure import Failure, output

# What no test imports, and is large: patterns of files and folders in Python's library.
UNUSED = ("test", "tests", "idlelib", "tkinter", "lib2to3", "ensurepip", "*-packages", "config-*", "*.opt-[12].pyc")
WHERE = """
import json, sys, sysconfig
from importlib.metadata import distribution
from packaging.requirements import Requirement
library, extensions = sysconfig.get_path("stdlib"), sysconfig.get_config_var("DESTSHARED")
found, wanted = {}, ["pytest"]
while wanted:
    name = wanted.pop()
    if name not in found:
        here = distribution(name)
        found[name] = [str(here.locate_file(file)) for file in here.files or [] if not str(file).startswith("..")]
        needs = [Requirement(text) for text in here.requires or []]
        wanted += [need.name for need in needs if not need.marker or need.marker.evaluate({"extra": ""})]
site = str(distribution("pytest").locate_file(""))
print(json.dumps([sys._base_executable, library, extensions, site, sum(found.values(), [])]))
"""


class Image:
    """An initramfs in the making: guest path to content."""

    def __init__(self) -> None:
        self._folders: set[str] = set()
        self._links: dict[str, str] = {}
        self._files: dict[str, tuple[Path | bytes, int]] = {}

    def folder(self, path: str) -> None:
        """An empty folder, with those above it."""
        while path not in ("/", "") and path not in self._folders:
            self._folders.add(path)
            path = os.path.dirname(path)

    def link(self, path: str, target: str) -> None:
        """A symbolic link."""
        self.folder(os.path.dirname(path))
        self._links[path] = target

    def write(self, path: str, content: str | bytes, executable: bool = False) -> None:
        """A file from memory."""
        self.folder(os.path.dirname(path))
        data = content.encode() if isinstance(content, str) else content
        self._files[path] = (data, 0o755 if executable else 0o644)

    def copy(self, source: Path, path: str | None = None) -> None:
        """A file of this machine, by default at the same path."""
        path = path or str(source.absolute())
        self.folder(os.path.dirname(path))
        self._files[path] = (source, 0o755 if os.access(source, os.X_OK) else 0o644)

    def tree(self, source: Path, path: str | None = None, without: Sequence[str] = ()) -> None:
        """A folder of this machine with everything below but what matches a pattern; links to files followed."""

        def wanted(name: str) -> bool:
            return not any(fnmatch(name, pattern) for pattern in without)

        for folder, folders, files in os.walk(source):
            folders[:] = filter(wanted, folders)
            for name in filter(wanted, files):
                file = Path(folder, name)
                if file.is_file():
                    self.copy(file, str(Path(path or source, file.relative_to(source))))

    def program(self, source: Path, path: str | None = None) -> None:
        """A program or shared object with its libraries."""
        self.copy(source, path)
        for library in _libraries(source):
            self.copy(library.resolve(), str(library))

    def python(self, interpreter: Path, site: str) -> str:
        """A virtual environment's Python, with pytest in the folder `site`. Returns the interpreter's path."""
        text = output([interpreter, "-c", WHERE], f"{interpreter}")
        program, library, extensions, own, modules = json.loads(text)
        real = Path(program).resolve()
        self.program(real, program)
        self.tree(Path(library), without=UNUSED)
        for extension in Path(extensions).glob("*.so"):
            self.copy(extension)
            for found in _libraries(extension):
                self.copy(found.resolve(), str(found))
        for module in modules:
            if os.path.isfile(module):
                self.copy(Path(module), f"{site}/{os.path.relpath(module, own)}")
        return program

    def pack(self, archive: Path) -> None:
        """Writes the archive."""
        with archive.open("wb") as out:
            number = 0
            for path in sorted(self._folders):
                number += 1
                _member(out, number, path, stat.S_IFDIR | 0o755, b"")
            for path, target in sorted(self._links.items()):
                number += 1
                _member(out, number, path, stat.S_IFLNK | 0o777, target.encode())
            for path, (source, mode) in sorted(self._files.items()):
                number += 1
                content = source if isinstance(source, bytes) else source.read_bytes()
                _member(out, number, path, stat.S_IFREG | mode, content)
            _member(out, 0, "/TRAILER!!!", 0, b"")


def _member(out: BinaryIO, inode: int, path: str, mode: int, content: bytes) -> None:
    name = path.lstrip("/").encode() + b"\0"
    #        ino    mode  uid gid nlink mtime size         device and rdevice  name       check
    fields = [inode, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name), 0]
    header = b"070701" + b"".join(b"%08X" % field for field in fields)
    out.write(_padded(header + name) + _padded(content))


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


def _libraries(program: Path) -> list[Path]:
    """The shared libraries and the loader that a program needs; none where it is static."""
    result = subprocess.run(["ldd", program], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        return []
    missing = re.findall(r"(\S+) => not found", result.stdout)
    if missing:
        raise Failure(f"{program} needs {', '.join(missing)}, which this machine does not have")
    return [Path(path) for path in re.findall(r"(/\S+) \(0x", result.stdout)]
