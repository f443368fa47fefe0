"""What is left of `expressway balance` when it is killed, and what the next start makes of it."""

import socket
import threading
from collections.abc import Callable
from pathlib import Path

from harness.balance import Balancer, Client, Network, services, wait_until
from harness.paths import LIMIT

Made = Callable[..., Balancer]


def test_sigkill_leaves_nothing(network: Network, make_balancer: Made) -> None:
    """Without `pin`, the program goes with the process, and the next start is as the first."""
    balancer = make_balancer(services(["n1"]))
    balancer.kill()
    wait_until(lambda: not balancer.left(), "the program stayed")
    make_balancer(services(["n1"]))
    assert Client(network).ask() == "n1"


def test_pinned_it_goes_on_when_killed(bpffs: Path, network: Network, make_balancer: Made) -> None:
    """With `pin`, flows go on without a process, new ones too, and the next start takes over."""
    assert bpffs.is_dir()
    balancer = make_balancer("pin = true\n" + services(["n1", "n2"]))
    clients = [Client(network, socket.SOCK_DGRAM) for _ in range(20)]
    homes = [client.ask() for client in clients]
    balancer.kill()
    assert balancer.left()
    assert [client.ask() for client in clients] == homes
    assert Client(network).ask() in ("n1", "n2")
    make_balancer("pin = true\n" + services(["n1", "n2"]))
    assert [client.ask() for client in clients] == homes, "the ring is the same"


class Talk:
    """A connection on which one message follows the other, on a thread of its own."""

    def __init__(self, network: Network) -> None:
        self.client = Client(network)
        self.home = self.client.ask()
        self.answers = 0
        self.problem = ""
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._talk, daemon=True)
        self.thread.start()

    def _talk(self) -> None:
        try:
            while not self.over.is_set():
                answer = self.client.ask()
                assert answer == self.home, f"{answer} answers in place of {self.home}"
                self.answers += 1
        except (OSError, AssertionError) as error:
            self.problem = str(error) or type(error).__name__

    def end(self) -> None:
        """Ends it and says whether all was well."""
        self.over.set()
        self.thread.join(LIMIT)
        assert not self.problem, self.problem
        self.client.close()


def go_on(talks: list[Talk], more: int = 20) -> None:
    """Waits until each has had so many answers more."""
    goals = [talk.answers + more for talk in talks]
    arrived = lambda: all(talk.problem or talk.answers >= goal for talk, goal in zip(talks, goals, strict=True))  # noqa: E731
    wait_until(arrived, f"answers stay away: {[talk.answers for talk in talks]}")
    assert not any(talk.problem for talk in talks), [talk.problem for talk in talks]


def test_established_flows_outlive_the_process_where_asked_for(bpffs: Path, network: Network, make_balancer: Made) -> None:
    """Killed and started again with another ring, over which each connection would go elsewhere; then with other tables."""
    head = "pin = true\n"
    balancer = make_balancer(head + services(["n1", "n2"]))
    talks = [Talk(network) for _ in range(12)]
    go_on(talks)
    balancer.kill()
    go_on(talks)
    moved = head + services(["n3", "n2", "n1"], n3="weight = 1000", n2="weight = 1", n1="weight = 1")
    balancer = make_balancer(moved)
    assert "flow tables of an earlier process taken over" in balancer.log()
    go_on(talks)
    new = [Client(network).ask() for _ in range(10)]
    assert new.count("n3") >= 8, f"new ones go by the new ring, 1000 of 1002 parts of which are n3's: {new}"
    balancer.kill()
    go_on(talks)
    balancer = make_balancer(head + services(["n2", "n1"]))
    go_on(talks)
    balancer.kill()
    balancer = make_balancer(head + "flows = 2048\n" + services(["n1", "n2"]))
    assert "not taken over, so flows start over: flows: 1048576 entries of 20+16 bytes, not 2048 entries" in balancer.log()
    for talk in talks:
        talk.over.set()
    balancer.stop()
    assert list(bpffs.glob("expressway/*")) == [], "an orderly end leaves nothing"


def test_a_start_that_fails_leaves_tables_for_the_next(bpffs: Path, network: Network, make_balancer: Made, tmp_path: Path) -> None:
    """And one without `pin` takes them over and removes their pins."""
    balancer = make_balancer("pin = true\n" + services(["n1", "n2"]))
    talks = [Talk(network) for _ in range(6)]
    go_on(talks)
    balancer.kill()
    failed = Balancer(network, tmp_path / "failed", 'pin = true\ninterfaces = ["none"]\n' + services(["n1", "n2"]))
    assert failed.process.wait(LIMIT) == 1
    assert "no such interface" in failed.log()
    go_on(talks)
    balancer = make_balancer(services(["n2", "n3", "n1"], n3="weight = 1000"))
    assert "taken over" in balancer.log()
    go_on(talks)
    for talk in talks:
        talk.end()
    assert list(bpffs.glob("expressway/*")) == []
    balancer.kill()
    wait_until(lambda: not balancer.left(), "the program stayed")
