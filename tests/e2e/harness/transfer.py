"""A transfer that something happens in the middle of, and that has to come to its end unharmed."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from . import clients
from .metrics import Metrics
from .paths import LIMIT, LONG_CLIP
from .server import Server, address


class Transfer:
    """A client that fetches a long file again and again on one connection, until it is told to come to an end."""

    def __init__(self, server: Server, certificates: Path, host: str | None = None) -> None:
        self.server = server
        connect = address(host or server.lab.server["ipv4"])
        before = server.metrics().sum("bytes_sent_total")
        self.client: subprocess.Popen[str] = clients.start(
            server.lab, connect, certificates, ["/long.mp4"], "-until-told", "-timeout", f"{2 * LIMIT - 20:.0f}s"
        )
        self.start = server.wait_for("transfer under way", lambda m: m.sum("bytes_sent_total") > before + 10_000_000)

    def await_more(self, what: str, more: str, beyond: int = 0) -> Metrics:
        """Waits until a counter has grown from what it is now."""
        before = self.server.metrics().sum(more) + beyond
        assert self.client.poll() is None, f"{what}: the transfer has failed: {clients.finish(self.client)}"
        return self.server.wait_for(what, lambda m: m.sum(more) > before)

    def finish(self) -> None:
        """The connection has lived to the end, and every byte is right."""
        report = clients.finish(self.client, "\n")
        assert not report.get("error"), f"{report}\n{self.server.log()}"
        assert [answer["sha256"] for answer in report["responses"]] == [clients.sha256(LONG_CLIP)]


@contextmanager
def transfer(server: Server, certificates: Path, **options) -> Iterator[Transfer]:
    """A transfer in whose middle something happens; it has to survive that."""
    under_way = Transfer(server, certificates, **options)
    try:
        yield under_way
        under_way.finish()
    finally:
        if under_way.client.poll() is None:
            under_way.client.kill()
            under_way.client.wait()


def reattached(reason: str, times: int = 1) -> Callable[[Metrics], bool]:
    """Whether interfaces were opened again so often."""
    return lambda m: m.sum("io_reattach_total", reason=reason) >= times
