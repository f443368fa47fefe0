"""Headless Chromium in the client's namespace, driven over its debugging pipe (Chrome DevTools Protocol)."""

import base64
import contextlib
import hashlib
import json
import os
import select
import subprocess
import time
from pathlib import Path
from typing import Any

from .lab import Lab
from .paths import HOST, LIMIT, PORT


def public_key_hash(certificate: Path) -> str:
    """The hash by which Chromium knows a key: SHA-256 of its SubjectPublicKeyInfo, in base64."""
    # Guests, which have no browser, lack the package.
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    leaf = x509.load_pem_x509_certificates(certificate.read_bytes())[0]
    info = leaf.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return base64.b64encode(hashlib.sha256(info).digest()).decode()


class Browser:
    """One page. Commands and events are JSON documents that end with a zero byte, on descriptors 3 and 4."""

    def __init__(self, lab: Lab, folder: Path, server: str, certificates: Path, force_quic: bool = True) -> None:
        self.lab = lab
        self._profile = folder / "profile"
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        flags = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--autoplay-policy=no-user-gesture-required",
            f"--user-data-dir={self._profile}",
            "--enable-quic",
            f"--host-resolver-rules=MAP {HOST} {server}",
            # Else the page is first asked for over TCP, whose answer names HTTP/3. Over QUIC, unknown roots are for hosts
            # that are named here only, with whatever port.
            f"--origin-to-force-quic-on={HOST}:{PORT if force_quic else 1}",
            f"--ignore-certificate-errors-spki-list={public_key_hash(certificates / 'cert.pem')}",
            "--remote-debugging-pipe",
        ]
        # bash puts the pipes where Chromium looks for them; sh knows descriptors of one digit only.
        shell = ["bash", "-c", f'exec 3<&{to_browser} 4>&{from_browser}; exec "$@"', "bash", "chromium", *flags]
        self.log = folder / "chromium.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                lab.inside("client", *shell),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(to_browser, from_browser),
                env={**os.environ, "HOME": str(folder)},
            )
        os.close(to_browser)
        os.close(from_browser)
        self._buffer = b""
        self._id = 0
        self.events: list[dict[str, Any]] = []
        target = self._call("Target.createTarget", {"url": "about:blank"}, session=None)["targetId"]
        attach = {"targetId": target, "flatten": True}
        self._session = self._call("Target.attachToTarget", attach, session=None)["sessionId"]
        for domain in ("Network", "Page", "Runtime"):
            self.call(f"{domain}.enable")

    def _message(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            left = deadline - time.monotonic()
            readable, _, _ = select.select([self._read], [], [], max(left, 0))
            assert readable, f"Chromium is silent:\n{self.log.read_text(errors='replace')}"
            data = os.read(self._read, 1 << 16)
            assert data, f"Chromium has ended:\n{self.log.read_text(errors='replace')}"
            self._buffer += data
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)

    def _call(self, method: str, parameters: dict[str, Any], session: str | None) -> dict[str, Any]:
        self._id += 1
        command: dict[str, Any] = {"id": self._id, "method": method, "params": parameters}
        if session:
            command["sessionId"] = session
        os.write(self._write, json.dumps(command).encode() + b"\0")
        deadline = time.monotonic() + LIMIT
        while True:
            message = self._message(deadline)
            if message.get("id") == self._id:
                assert "error" not in message, f"{method}: {message['error']}"
                return message["result"]
            self.events.append(message)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command to the page."""
        return self._call(method, parameters, self._session)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression; a promise is waited for."""
        result = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait_until(self, expression: str) -> None:
        """Waits until a JavaScript expression is true."""
        deadline = time.monotonic() + LIMIT
        while not self.evaluate(expression):
            assert time.monotonic() < deadline, f"never true: {expression}"
            time.sleep(0.05)

    def responses(self, path: str) -> list[dict[str, Any]]:
        """The responses seen so far to requests for a path."""
        received = [event["params"]["response"] for event in self.events
                    if event.get("method") == "Network.responseReceived"]
        return [response for response in received if response["url"] == f"https://{HOST}:{PORT}{path}"]

    def close(self) -> None:
        """Ends it, and waits for its crash handlers, which end a moment after it."""
        # A process that is about to end names no profile any more, and is still in its namespace.
        ending = []
        for number in self._processes():
            with contextlib.suppress(ProcessLookupError):
                ending.append(os.pidfd_open(number))
        self.process.kill()
        self.process.wait(LIMIT)
        os.close(self._write)
        os.close(self._read)
        deadline = time.monotonic() + LIMIT
        for process in ending:
            assert select.select([process], [], [], max(deadline - time.monotonic(), 0))[0], "a process of Chromium stays"
            os.close(process)
        # A crash handler that was about to start named no profile yet.
        while left := [*self._processes().values(), *(one for one in self.lab.processes() if one.startswith("chrom"))]:
            assert time.monotonic() < deadline, f"Chromium has ended, these have not: {left}"
            time.sleep(0.02)

    def _processes(self) -> dict[int, str]:
        """The processes whose command lines name its profile."""
        found = {}
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            # One that has ended meanwhile has none.
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                words = path.read_bytes().decode(errors="replace").replace("\0", " ")
                if str(self._profile) in words:
                    found[int(path.parent.name)] = words
        return found
