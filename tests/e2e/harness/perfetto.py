"""Perfetto's user interface in headless Chromium: what its trace processor makes of a file."""

import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .browser import Browser
from .namespace import run_inside
from .paths import LIMIT, PEERS

WEB = ("127.0.0.1", 9280)

# Rows of a query as lists of texts; BigInt has no JSON.
QUERY = """(async () => {
  const result = await app.trace.engine.query(%s);
  const columns = result.columns(), rows = [];
  const plain = (value) => typeof value === 'bigint' ? Number(value) : value;
  for (const row = result.iter({}); row.valid(); row.next()) rows.push(columns.map((name) => plain(row.get(name))));
  return rows;
})()"""


# Whether its handler of messages is there: it answers a ping (https://perfetto.dev/docs/visualization/deep-linking-to-perfetto-ui).
READY = """new Promise((resolve) => {
  const pings = setInterval(() => window.postMessage('PING', '*'), 50);
  window.addEventListener('message', (event) => {
    if (event.data === 'PONG') { clearInterval(pings); resolve(true); }
  });
})"""


class Perfetto:
    """A page of it with a trace."""

    def __init__(self, browser: Browser, file: Path) -> None:
        self._browser = browser
        browser.call("Page.navigate", url=f"http://{WEB[0]}:{WEB[1]}/index.html")
        browser.wait_until("document.readyState === 'complete'")
        browser.evaluate(READY)
        text = json.dumps(file.read_text())
        browser.evaluate(f"window.postMessage({{perfetto: {{title: 'trace', buffer: new TextEncoder().encode({text}).buffer}}}}, '*')")
        browser.wait_until("!!app.trace && !app.isLoadingTrace")

    def query(self, text: str) -> list[list[Any]]:
        """The rows of a query in its SQL."""
        return self._browser.evaluate(QUERY % json.dumps(text))

    def errors(self) -> list[list[Any]]:
        """What it found wrong with the file, and how often."""
        return self.query("SELECT name, value FROM stats WHERE severity IN ('error', 'data_loss') AND value > 0")


def connects() -> bool:
    """Whether somebody listens there."""
    with contextlib.suppress(OSError), socket.create_connection(WEB, LIMIT):
        return True
    return False


@contextlib.contextmanager
def served(browser: Browser) -> Iterator[None]:
    """Perfetto's pages, where the browser is."""
    command = [sys.executable, "-m", "http.server", "--bind", WEB[0], "--directory", PEERS / "perfetto", str(WEB[1])]
    server = subprocess.Popen(browser.lab.inside("client", *map(str, command)), stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + LIMIT
        while not run_inside(browser.lab.client_namespace, connects):
            assert time.monotonic() < deadline and server.poll() is None, "no web server"
            time.sleep(0.05)
        yield
    finally:
        server.kill()
        server.wait()
