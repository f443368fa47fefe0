"""What `expressway forward` counts where a device does not send what it is given, before the process hears of it."""

import signal
import socket
from collections.abc import Callable

from harness import kernel
from harness.namespace import udp_socket
from harness.paths import run
from harness.router import Forward, Network
from test_forward import TWO, drain, host, make_forward, make_network, receiver, wait_until

__all__ = ["make_forward", "make_network"]

Made = Callable[..., Forward]
PACKETS = 20


def counted(forward: Forward, interface: str, verdict: str, reason: str) -> int:
    """Packets that came by an interface."""
    (found,) = [one for one in forward.statistics()["interfaces"] if one["interface"] == interface]
    return found["packets"].get(verdict, {}).get(reason, 0)


def test_datagrams_of_a_feed_without_a_device_are_not_counted_as_copied(make_network: Callable[..., Network], make_forward: Made) -> None:
    """The kernel takes a device that goes out of the program's maps at once; the process is stopped meanwhile."""
    network = make_network(hosts=3)
    feed = '[[replicate]]\nlisten = "239.1.1.1:5000"\ninterfaces = ["e1"]\n'
    to = ", ".join(f'{{ address = "{host(number)}:6000" }}' for number in (2, 3))
    forward = make_forward(network, f'interfaces = ["e1", "e2", "e3"]\n{feed}to = [{to}]\n')
    wait_until(lambda: all(one["problem"] is None for one in forward.statistics()["feeds"][0]["receivers"]), "never resolved")
    bound = receiver(network, 3, socket.AF_INET, 6000)
    sender = udp_socket(network.hosts[1], socket.AF_INET, "eth0")
    payloads = [b"%d" % number for number in range(PACKETS)]

    def send() -> None:
        for payload in payloads:
            sender.sendto(payload, ("239.1.1.1", 5000))

    forward.signal(signal.SIGSTOP)
    network.ip(network.router, "link delete dev e2")
    send()
    assert drain(bound, PACKETS) == payloads, "the other receiver goes on"
    network.ip(network.router, "link delete dev e3")
    send()
    # The echo request is behind them on the link.
    assert "1 received" in network.ping(1, "10.1.0.1")
    forward.signal(signal.SIGCONT)
    wait_until(lambda: counted(forward, "e1", "pass", "no_receiver") == PACKETS, f"never counted: {forward.statistics()}")
    assert counted(forward, "e1", "redirect", "replicated") == PACKETS
    (told,) = forward.statistics()["feeds"]
    assert told["packets"] == PACKETS
    assert [one["packets"] for one in told["receivers"]] == [0, PACKETS]


def test_what_a_device_cannot_send_is_counted_as_refused(make_network: Callable[..., Network], make_forward: Made) -> None:
    """A veth sends no redirected frames once its peer takes none; the process is stopped before it is told."""
    network = make_network()
    forward = make_forward(network, TWO)
    if forward.statistics()["interfaces"][0]["egress"] is None:
        kernel.lacks("this kernel lets nobody trace what devices do with redirected frames")
    network.ping(1, host(2))

    def refused() -> int:
        (e2,) = [one for one in forward.statistics()["interfaces"] if one["interface"] == "e2"]
        return e2["egress"]["refused"]

    before, forwarded = refused(), counted(forward, "e1", "redirect", "forwarded")
    sender = udp_socket(network.hosts[1], socket.AF_INET)
    forward.signal(signal.SIGSTOP)
    run(["ip", "netns", "exec", network.hosts[2], "ethtool", "-K", "eth0", "gro", "off"])
    for _ in range(PACKETS):
        sender.sendto(bytes(64), (host(2), 5000))
    assert "1 received" in network.ping(1, "10.1.0.1"), "which is behind them"
    forward.signal(signal.SIGCONT)
    wait_until(lambda: refused() - before >= PACKETS, f"never counted: {forward.statistics()}")
    assert counted(forward, "e1", "redirect", "forwarded") - forwarded == refused() - before
    # Once it knows, the kernel sends what comes.
    bound = receiver(network, 2, socket.AF_INET)

    def arrives() -> bool:
        sender.sendto(b"again", (host(2), 5000))
        return bool(drain(bound, 1))

    wait_until(arrives, "nothing arrives any more")
    assert counted(forward, "e1", "pass", "other_egress") > 0
