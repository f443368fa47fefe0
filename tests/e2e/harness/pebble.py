"""Pebble, the test authority of Let's Encrypt, and its DNS server, which leads every name to the server."""

import json
import os
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

from .lab import Lab
from .namespace import run_inside
from .paths import BINARY, LIMIT, PEERS, run

URL = "https://localhost:14000/dir"
MANAGEMENT = "https://localhost:15000"
DNS = "127.0.0.1:8053"


class Pebble:
    """An authority inside the server's namespace of a lab, whose certificates are valid for some seconds."""

    def __init__(self, lab: Lab, folder: Path, *, seconds: int, tls_port: int, http_port: int) -> None:
        self.lab = lab
        self.folder = folder
        run([BINARY, "cert", "--host", "localhost", "--out", folder])
        self.ca = folder / "ca.pem"
        config = {
            "pebble": {
                "listenAddress": "127.0.0.1:14000",
                "managementListenAddress": "127.0.0.1:15000",
                "certificate": str(folder / "cert.pem"),
                "privateKey": str(folder / "key.pem"),
                "httpPort": http_port,
                "tlsPort": tls_port,
                "ocspResponderURL": "",
                "externalAccountBindingRequired": False,
                "domainBlocklist": ["blocked-domain.example"],
                "profiles": {"default": {"description": "short-lived", "validityPeriod": seconds}},
            }
        }
        (folder / "pebble.json").write_text(json.dumps(config))
        self.log_file = folder / "pebble.log"
        # No pauses, and now and then a nonce that has to be asked for again.
        environment = {**os.environ, "PEBBLE_VA_NOSLEEP": "1", "PEBBLE_WFE_NONCEREJECT": "5"}
        # Without listeners but that of DNS.
        dns = ["-dnsserver", DNS, "-management", "127.0.0.1:8055", "-defaultIPv4", lab.server["ipv4"], "-defaultIPv6", ""]
        none = ["-http01", "", "-https01", "", "-tlsalpn01", "", "-doh", ""]
        commands = [
            [PEERS / "pebble-challtestsrv", *dns, *none],
            [PEERS / "pebble", "-config", folder / "pebble.json", "-dnsserver", DNS],
        ]
        with self.log_file.open("ab") as log:
            self.processes = [
                subprocess.Popen(lab.inside("server", *map(str, command)), stdout=log, stderr=log, env=environment)
                for command in commands
            ]
        self.wait_ready()

    def get(self, url: str) -> bytes:
        """What the authority answers."""
        context = ssl.create_default_context(cafile=self.ca)

        def ask() -> bytes:
            with urllib.request.urlopen(url, context=context, timeout=LIMIT) as response:
                return response.read()

        return run_inside(self.lab.server_namespace, ask)

    def wait_ready(self) -> None:
        """Waits until it answers."""
        deadline = time.monotonic() + LIMIT
        while True:
            try:
                self.get(URL)
                return
            except (urllib.error.URLError, ConnectionError):
                assert time.monotonic() < deadline, self.log_file.read_text()
                time.sleep(0.05)

    def root(self, file: Path) -> Path:
        """The root of what it signs, written to a file."""
        file.write_bytes(self.get(f"{MANAGEMENT}/roots/0"))
        return file

    def stop(self) -> None:
        """Ends both."""
        for process in self.processes:
            process.kill()
            process.wait(LIMIT)
