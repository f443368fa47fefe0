"""Keys that servers and balancers share."""

import json
import shutil
from pathlib import Path

from .paths import BINARY, run


class Shared:
    """A document of keys, and who signs it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        run([BINARY, "keys", "new", "--out", folder])
        self.file, self.signer, self.public = (folder / name for name in ("shared.keys", "signer.pem", "signer.pub"))

    def copy(self, folder: Path) -> "Shared":
        """The same document for another server, which nobody else replaces."""
        copy = Shared.__new__(Shared)
        copy.folder = Path(shutil.copytree(self.folder, folder))
        copy.file, copy.signer, copy.public = (copy.folder / name for name in ("shared.keys", "signer.pem", "signer.pub"))
        return copy

    def rotate(self) -> int:
        """The next version."""
        words = [BINARY, "keys", "rotate", self.file, "--signer", self.signer, "--json"]
        return json.loads(run(words))["version"]

    def show(self) -> dict:
        """All of it."""
        return json.loads(run([BINARY, "keys", "show", self.file, "--signer", self.public, "--secrets", "--json"]))

    def distribute(self, *others: "Shared") -> None:
        """Has others the same document."""
        for other in others:
            other.put(self.file.read_bytes())

    def more(self, **sections: dict[str, str]) -> dict:
        """Of a server's configuration."""
        return {"keys": {"file": f'"{self.file}"', "signer": f'"{self.public}"'}, **sections}

    def section(self) -> str:
        """The same as TOML."""
        return f'[keys]\nfile = "{self.file}"\nsigner = "{self.public}"\n'

    def put(self, content: bytes) -> None:
        """Puts something in its place, as whatever distributes files does it."""
        beside = self.file.with_suffix(".beside")
        beside.write_bytes(content)
        beside.chmod(0o640)
        beside.rename(self.file)
