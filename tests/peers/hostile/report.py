"""What an attack has done and seen, for the test that started it."""

import json
from collections import Counter

from wire import Wire


class Report:
    """Counts by name. Ends of connections are counted by code, as `closed application 0x107`."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def add(self, name: str, count: int = 1) -> None:
        """Counts something."""
        self.counts[name] += count

    def leave(self, wire: Wire) -> None:
        """Counts what a connection has seen, and gives its socket back."""
        self.add("connections")
        self.add("datagrams", wire.sent)
        self.add("received", wire.received)
        if not wire.established:
            self.add("not established")
        self.add(f"closed {wire.closed}" if wire.closed else "open")
        for code in wire.resets.values():
            self.add(f"reset {code:#x}")
        for code in wire.stops.values():
            self.add(f"stopped {code:#x}")
        for name, count in wire.quic.seen.items():
            self.add(name, count)
        wire.close()

    def show(self) -> None:
        """Prints it."""
        print(json.dumps(dict(self.counts)), flush=True)
