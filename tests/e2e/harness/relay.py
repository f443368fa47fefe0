"""A relay between clients and an agent, which goes away after so many messages. The agent behind it is a real one: what is
stood in for is the moment of its death."""

import os
import selectors
import socket
import threading
from pathlib import Path


class Relay:
    """Listens where clients look for an agent. Closed by `close`."""

    def __init__(self, agent: Path, path: Path, cut: int | None = None, back: bool = True) -> None:
        """`cut`: the first connection ends after that many messages, of both sides together, and with it the relay
        unless it is to be `back`, for those that come after."""
        self.agent, self.path, self.cut, self.back = agent, path, cut, back
        # Messages of the first connection.
        self.count = 0
        # It was ended by `cut`.
        self.has_cut = threading.Event()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(path))
        os.chmod(path, 0o666)
        self._listener.listen(64)
        self._open = True
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        first = True
        while self._open:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if not self._open:
                client.close()
                return
            thread = threading.Thread(target=self._pass_on, args=(client, self.cut if first else None, first), daemon=True)
            first = False
            self._threads.append(thread)
            thread.start()

    def _pass_on(self, client: socket.socket, cut: int | None, counts: bool) -> None:
        agent = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with client, agent, selectors.DefaultSelector() as ready:
            if cut == 0:
                return self._go_away()
            try:
                agent.connect(str(self.agent))
                ready.register(client, selectors.EVENT_READ, agent)
                ready.register(agent, selectors.EVENT_READ, client)
                passed = 0
                while self._open:
                    for key, _ in ready.select(0.2):
                        data, fds, _, _ = socket.recv_fds(key.fileobj, 1 << 16, 64)
                        if not data:
                            return None
                        socket.send_fds(key.data, [data], fds)
                        for fd in fds:
                            os.close(fd)
                        passed += 1
                        if counts:
                            self.count = passed
                        if passed == cut:
                            return self._go_away()
            except OSError:
                # One of them is gone, and so is the other.
                pass
        return None

    def _go_away(self) -> None:
        if not self.back:
            self._stop()
        self.has_cut.set()

    def _stop(self) -> None:
        self._open = False
        self.path.unlink(missing_ok=True)
        # Wakes who accepts.
        self._listener.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Ends everything that it does."""
        if self._open:
            self._stop()
        for thread in self._threads:
            thread.join()
        self._listener.close()
