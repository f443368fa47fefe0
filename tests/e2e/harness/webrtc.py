"""WebRTC peers in a lab, each a process of aiortc, and requests of WHIP and WHEP by hand."""

import json
import queue
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

from .lab import Lab
from .namespace import run_inside
from .paths import CLIENTS, LIMIT, PEERS

HTTP, MEDIA = 8080, 3478


class Peer:
    """A peer that publishes or plays."""

    SCRIPT = "aiortc_peer.py"

    def __init__(self, lab: Lab, role: str, url: str, *flags: str) -> None:
        command = [PEERS / "venv/bin/python", CLIENTS / self.SCRIPT, role, url, *flags]
        self.process = subprocess.Popen(
            lab.inside("client", *command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.events: list[dict[str, Any]] = []
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._errors: list[str] = []
        for stream, put in ((self.process.stdout, self._lines.put), (self.process.stderr, self._errors.append)):
            threading.Thread(target=self._read, args=(stream, put), daemon=True).start()

    def _read(self, stream, put: Callable[[Any], None]) -> None:
        for line in stream:
            put(line)
        if stream is self.process.stdout:
            self._lines.put(None)

    def wait(self, is_it: Callable[[dict[str, Any]], bool], what: str = "what was awaited", limit: float = LIMIT) -> dict[str, Any]:
        """The next event of a kind, or an earlier one that nobody has asked for."""
        deadline = time.monotonic() + limit
        seen = 0
        while True:
            for event in self.events[seen:]:
                seen += 1
                if is_it(event):
                    self.events.remove(event)
                    return event
            line = self._lines.get(timeout=max(0.01, deadline - time.monotonic()))
            assert line is not None, f"ended before {what}: {self.events[-5:]}\n{''.join(self._errors)}"
            self.events.append(json.loads(line))

    def answer(self, status: int = 201) -> dict[str, Any]:
        """What came of its offer."""
        event = self.wait(lambda event: event["event"] == "answer", "an answer")
        assert event["status"] == status, event
        return event

    def connected(self) -> "Peer":
        """Waits for ICE and DTLS."""
        self.wait(lambda event: event == {"event": "state", "state": "connected"}, "it was connected")
        return self

    def pictures(self, count: int) -> list[int]:
        """The numbers of the next pictures."""
        return [self.wait(lambda event: event["event"] == "picture", "a picture")["number"] for _ in range(count)]

    def message(self) -> dict[str, Any]:
        """The next message on a data channel."""
        return self.wait(lambda event: event["event"] == "message", "a message")

    def say(self, line: str) -> None:
        """A command."""
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def end(self) -> None:
        """DELETE, and goodbye."""
        self.say("end")
        event = self.wait(lambda event: event["event"] == "deleted", "it was deleted")
        assert event["status"] == 200, event
        assert self.process.wait(LIMIT) == 0, "".join(self._errors)

    def vanish(self) -> None:
        """It is gone, and says nothing."""
        self.process.kill()
        self.process.wait(LIMIT)

    def finish(self) -> None:
        """Whatever it does, it ends."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(LIMIT)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            stream.close()


def ask(
    lab: Lab, method: str, url: str, body: bytes | None = None, headers: dict[str, str] | None = None
) -> tuple[int, dict[str, str], str]:
    """A request from the client's namespace: status, fields and body."""

    def work() -> tuple[int, dict[str, str], str]:
        request = urllib.request.Request(url, body, headers or {}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=LIMIT) as answer:
                return answer.status, {name.lower(): value for name, value in answer.headers.items()}, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, {name.lower(): value for name, value in error.headers.items()}, error.read().decode()

    return run_inside(lab.client_namespace, work)
