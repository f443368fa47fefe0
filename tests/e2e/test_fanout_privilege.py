"""A fan-out with no privilege at all: by an agent, and in a container behind a veth."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness.agent import NOBODY, UNPRIVILEGED, Agent, status
from harness.fanout import FEED_PORT, TCP_PORT, Fanout, Sender, Subscriber, fanouts
from harness.lab import Lab
from harness.paths import LIMIT, open_to_all
from harness.server import address
from harness.transfer import reattached

GROUP = "239.7.7.7"
RULE = f"""name = "feed"
users = [{NOBODY}]
listen = ["0.0.0.0:{FEED_PORT}", "[::]:{FEED_PORT}", "{GROUP}:{FEED_PORT}"]
interfaces = ["server0"]
"""

# Where the container is, as the client sees it.
INSIDE, OUTSIDE = "198.51.100.1", "198.51.100.2"


# The user in namespaces of its own, which sets its end of a veth up when that comes, and then gives up what it could do there.
CONTAINER = (
    *UNPRIVILEGED[:-1],
    *("unshare", "--user", "--map-root-user", "--net", "sh", "-ec"),
    f"""ip link set lo up
    until ip link show cont0 > /dev/null 2>&1; do sleep 0.02; done
    ip address add {INSIDE}/24 dev cont0
    ip link set cont0 up
    exec setpriv --inh-caps=-all --bounding-set=-all --no-new-privs "$@\"""",
    "sh",
)


def connect_container(lab: Lab, fanout: Fanout) -> Fanout:
    """Gives a process that was started in `CONTAINER` one end of a veth, and the client's namespace the other."""
    fanout.namespace = f"/proc/{fanout.process.pid}/ns/net"
    others = {Path(f"/run/netns/{lab.server_namespace}").stat().st_ino, Path("/proc/self/ns/net").stat().st_ino}
    deadline = time.monotonic() + LIMIT
    while Path(fanout.namespace).stat().st_ino in others:
        assert fanout.process.poll() is None and time.monotonic() < deadline, fanout.log()
        time.sleep(0.01)
    pid = str(fanout.process.pid)
    lab.run("client", "ip", "link", "add", "cont1", "type", "veth", "peer", "name", "cont0", "netns", pid)
    lab.run("client", "ip", "address", "add", f"{OUTSIDE}/24", "dev", "cont1")
    lab.run("client", "ip", "link", "set", "cont1", "up")
    return fanout.wait_ready()


@pytest.fixture
def make_fanout(make_lab, start_agent, tmp_path: Path) -> Iterator[Callable[..., Fanout]]:
    """Starts fan-outs with len32 framing; at the end each has to be alive and to stop cleanly."""
    with fanouts(tmp_path) as start:

        def make(lab: Lab, *flags: str, feed: str, tcp: str, prefix: tuple[str, ...]) -> Fanout:
            words = ("--udp", address(feed, FEED_PORT), "--tcp", address(tcp, TCP_PORT), "--framing", "len32", *flags)
            fanout = start(lab, *words, prefix=prefix)
            return connect_container(lab, fanout) if prefix is CONTAINER else fanout.wait_ready()

        yield make


def has_nothing(fanout: Fanout) -> None:
    """The process has no capability, and cannot get one."""
    now = status(fanout.process.pid)
    assert {now[f"Cap{kind}"] for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {"0" * 16}
    assert now["NoNewPrivs"] == "1" and set(now["Uid"].split()) == {str(NOBODY)}, now


def feed_reaches(lab: Lab, fanout: Fanout, to: str, subscribers: int, host: str, interface: str | None = None) -> None:
    """A few hundred datagrams, whole and in order."""
    made = [Subscriber(lab, host) for _ in range(subscribers)]
    fanout.wait_for("the subscribers", lambda m: m.sum("fanout_subscribers") == subscribers)
    last = Sender(lab, to, interface=interface).send(300)
    for subscriber in made:
        subscriber.read_to(last)
        assert not subscriber.gaps


@pytest.fixture
def open_agent(start_agent, tmp_path: Path) -> Callable[[Lab], Agent]:
    """Starts an agent whose socket everyone can reach."""
    open_to_all(tmp_path)
    return lambda lab: start_agent(lab, RULE)


@pytest.mark.parametrize("mode", ["udp", "copy", "auto", "multicast", "multicast copy"])
def test_by_an_agent_without_any_capability(make_lab, open_agent, make_fanout, mode: str) -> None:
    lab = make_lab()
    agent = open_agent(lab)
    host = lab.server["ipv4"]
    group, io = mode.startswith("multicast"), mode.removeprefix("multicast").strip() or "udp"
    feed = GROUP if group else host
    flags = ["--io", io, *(["--interface", "server0"] if group else [])]
    fanout = make_fanout(lab, "--agent", str(agent.socket), *flags, feed=feed, tcp=host, prefix=UNPRIVILEGED)
    has_nothing(fanout)
    assert fanout.ready[0]["io"] == {"auto": "copy"}.get(io, io)
    feed_reaches(lab, fanout, feed, 5, host, "client0" if group else None)
    if io != "udp":
        fanout.wait_for("packets by AF_XDP", lambda m: m.sum("rx_xsk_packets_total") >= 300)
    fanout.stop()
    assert "xdp" not in lab.run("server", "ip", "link", "show", "server0"), "an XDP program stayed"
    agent.stop()


def test_an_agent_that_is_killed_and_comes_back(make_lab, open_agent, make_fanout) -> None:
    lab = make_lab()
    agent = open_agent(lab)
    host = lab.server["ipv4"]
    fanout = make_fanout(
        lab, "--agent", str(agent.socket), "--io", "copy", feed=host, tcp=host, prefix=UNPRIVILEGED
    )
    subscriber, sender = Subscriber(lab, host), Sender(lab, host)
    fanout.wait_for("the subscriber", lambda m: m.sum("fanout_subscribers") == 1)
    subscriber.read_to(sender.send(100))
    agent.kill()
    fanout.wait_for("its end seen", lambda m: m.sum("agent_connected") == 0)
    subscriber.read_to(sender.send(100))
    agent.start()
    fanout.wait_for("opened by it", reattached("agent"))
    subscriber.read_to(sender.send(100))
    before = fanout.metrics().sum("rx_xsk_packets_total")
    subscriber.read_to(sender.send(100))
    fanout.wait_for("packets by AF_XDP", lambda m: m.sum("rx_xsk_packets_total") >= before + 100)
    assert not subscriber.gaps
    fanout.stop()
    agent.stop()


@pytest.mark.parametrize("feed", [INSIDE, GROUP], ids=["unicast", "multicast"])
def test_in_a_container_behind_a_veth(make_lab, make_fanout, feed: str) -> None:
    lab = make_lab()
    flags = ["--interface", "cont0"] if feed == GROUP else []
    fanout = make_fanout(lab, *flags, feed=feed, tcp=INSIDE, prefix=CONTAINER)
    has_nothing(fanout)
    feed_reaches(lab, fanout, feed, 5, INSIDE, "cont1" if feed == GROUP else None)


def test_in_a_container_with_the_feed_by_an_agent(make_lab, open_agent, make_fanout) -> None:
    lab = make_lab()
    agent = open_agent(lab)
    host = lab.server["ipv4"]
    flags = ("--agent", str(agent.socket), "--io", "copy")
    fanout = make_fanout(lab, *flags, feed=host, tcp=INSIDE, prefix=CONTAINER)
    has_nothing(fanout)
    # The feed comes to the agent's namespace, subscribers to the container's.
    feed_reaches(lab, fanout, host, 5, INSIDE)
    fanout.wait_for("packets by AF_XDP", lambda m: m.sum("rx_xsk_packets_total") >= 300)
    fanout.stop()
    agent.stop()
