"""Peers of Media over QUIC in a lab, each a process of moq-rs."""

import subprocess

from .webrtc import Peer

PORT = 4443


class MoqPeer(Peer):
    """A peer that publishes, subscribes, fetches or watches."""

    SCRIPT = "moq_peer.py"

    def event(self, name: str) -> dict:
        """The next event of that name."""
        return self.wait(lambda event: event["event"] == name, name)

    def groups(self, count: int) -> list[int]:
        """The numbers of the next groups that came whole, each as it was made."""
        found = []
        while len(found) < count:
            event = self.wait(lambda event: event["event"] in ("group", "wrong"), "a group")
            assert event["event"] == "group", event
            found.append(event["group"])
        return found

    def command(self, line: str) -> None:
        """A command."""
        self.say(line)

    def finish(self) -> None:
        """Has it close its connection."""
        if self.process.poll() is None:
            self.process.stdin.close()
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                pass
        super().finish()


class Stranger(MoqPeer):
    """A peer that does what no well-behaved one does, on aioquic's streams."""

    SCRIPT = "moq_stranger.py"
