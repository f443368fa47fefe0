"""Headless Firefox in the client's namespace. Nothing drives it: its page tells the server what it saw."""

import os
import subprocess
import time
from pathlib import Path

from .lab import Lab
from .paths import HOST, LIMIT, run

# As people have it, but for what it would ask them, or strangers, at its first start.
PREFERENCES = {
    # HTTP/3 with a CA that is not one of Mozilla's.
    "network.http.http3.disable_when_third_party_roots_found": False,
    "app.normandy.enabled": False,
    "app.update.enabled": False,
    "browser.aboutwelcome.enabled": False,
    "browser.safebrowsing.malware.enabled": False,
    "browser.safebrowsing.phishing.enabled": False,
    "browser.shell.checkDefaultBrowser": False,
    "datareporting.healthreport.uploadEnabled": False,
    "datareporting.policy.dataSubmissionEnabled": False,
    "extensions.update.enabled": False,
    "network.captive-portal-service.enabled": False,
    "network.connectivity-service.enabled": False,
    "services.settings.server": "http://127.0.0.1:1",
    "toolkit.telemetry.reportingpolicy.firstRun": False,
}

# It has one name more to look up, and ends with all that it has started.
START = 'mount --bind "$1" /etc/hosts && shift && exec "$@"'


class Firefox:
    """One window with one page."""

    def __init__(self, lab: Lab, folder: Path, server: str, certificates: Path, url: str) -> None:
        self._lab = lab
        profile = folder / "profile"
        profile.mkdir()
        run(["certutil", "-N", "-d", f"sql:{profile}", "--empty-password"])
        run(["certutil", "-A", "-d", f"sql:{profile}", "-n", "test", "-t", "C,,", "-i", certificates / "ca.pem"])
        lines = []
        for name, value in PREFERENCES.items():
            text = f'"{value}"' if isinstance(value, str) else str(value).lower()
            lines.append(f'user_pref("{name}", {text});\n')
        (profile / "user.js").write_text("".join(lines))
        hosts = folder / "hosts"
        hosts.write_text(f"127.0.0.1 localhost\n{server} {HOST}\n")
        program = ["firefox-esr", "--headless", "--no-remote", "--profile", profile, url]
        shell = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", START, "sh", hosts]
        self.log = folder / "firefox.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                lab.inside("client", *shell, *program),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "HOME": str(folder), "MOZ_CRASHREPORTER_DISABLE": "1"},
            )

    def wait_until_told(self, log: Path, words: str) -> str:
        """The first line of the server's access log with these words."""
        deadline = time.monotonic() + LIMIT
        while True:
            found = [line for line in log.read_text().splitlines() if words in line] if log.exists() else []
            if found:
                return found[0]
            said = self.log.read_text(errors="replace")
            assert self.process.poll() is None, f"Firefox has ended:\n{said}"
            assert time.monotonic() < deadline, f"it never asked for {words!r}:\n{said}"
            time.sleep(0.05)

    def close(self) -> None:
        """Ends it, and waits for all that it has started."""
        self.process.kill()
        self.process.wait(LIMIT)
        deadline = time.monotonic() + LIMIT
        while left := run(["ip", "netns", "pids", self._lab.client_namespace]).split():
            assert time.monotonic() < deadline, f"Firefox has ended, these have not: {left}"
            time.sleep(0.02)
