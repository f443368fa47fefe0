"""Privilege separation: an agent with all of it, servers with none; refusals, and the end of either side."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import clients, links
from harness.agent import CONTAINED, NOBODY, UNPRIVILEGED, Agent, status
from harness.agent_client import AgentClient, connect, message
from harness.paths import BINARY, CLIP, LIMIT, PORT
from harness.server import Server, address
from harness.transfer import reattached, transfer

RULE = f"""name = "edge"
users = [{NOBODY}]
listen = ["0.0.0.0:{PORT}", "[::]:{PORT}"]
interfaces = ["server0"]
"""


@pytest.fixture
def make_agent(start_agent) -> Callable[..., Agent]:
    """Starts agents, with a rule if none is given."""

    def make(lab, *rules: str, limits: str = "") -> Agent:
        return start_agent(lab, *(rules or (RULE,)), limits=limits)

    return make


def io(agent: Agent) -> dict[str, dict[str, str]]:
    """The part of a configuration that names the agent."""
    return {"io": {"agent": f'"{agent.socket}"'}}


def fetch(server: Server, readable: Path, client: str = "quicgo") -> None:
    """The clip, whole."""
    (answer,) = clients.fetch(server.lab, client, address(server.lab.server["ipv4"]), readable, ["/clip.mp4"])
    assert (answer.status, answer.sha256) == (200, clients.sha256(CLIP))


def attached(lab) -> bool:
    """Whether an XDP program is on the server's interface."""
    return "xdp" in lab.run("server", "ip", "link", "show", "server0")


def wait_until(true: Callable[[], bool], what: str) -> None:
    """Waits for something outside."""
    deadline = time.monotonic() + LIMIT
    while not true():
        assert time.monotonic() < deadline, f"never so: {what}"
        time.sleep(0.02)


@pytest.mark.parametrize("mode", ["copy", "hybrid", "udp"])
@pytest.mark.parametrize("prefix", [UNPRIVILEGED, CONTAINED], ids=["user", "user-and-network-namespace"])
def test_a_server_without_any_capability(
    make_lab, make_agent, make_server, readable: Path, prefix: tuple[str, ...], mode: str
) -> None:
    lab = make_lab()
    agent = make_agent(lab)
    server = make_server(lab, mode=mode, certificates=readable, prefix=prefix, more=io(agent))
    namespace = Path(f"/proc/{server.process.pid}/ns/net")
    if prefix is CONTAINED:
        server.namespace = str(namespace)
        assert namespace.stat().st_ino != Path(f"/run/netns/{lab.server_namespace}").stat().st_ino
    assert server.obtained() == mode
    now = status(server.process.pid)
    assert {now[f"Cap{kind}"] for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {"0" * 16}
    assert now["NoNewPrivs"] == "1" and set(now["Uid"].split()) == {str(NOBODY)}, now
    for client in clients.CLIENT_NAMES:
        fetch(server, readable, client)
    way = "kernel" if mode == "udp" else "xsk"
    metrics = server.wait_for("packets", lambda m: m.sum(f"rx_{way}_packets_total") > 0)
    assert metrics.sum("agent_connected") == 1
    if mode == "copy":
        server.wait_for("packets by AF_XDP", lambda m: m.sum("tx_xsk_packets_total") > 100)
    if mode != "udp":
        assert metrics.sum("rx_kernel_packets_total") == 0
        assert metrics.sum("xdp_packets_total", reason="taken") > 0
    server.stop()


@pytest.mark.parametrize("mode", ["copy", "udp"])
def test_the_agent_prepares_sockets_for_busy_polling(
    make_lab, make_agent, make_server, readable: Path, mode: str
) -> None:
    lab = make_lab()
    agent = make_agent(lab, RULE + "busy_poll = true\n")
    more = io(agent)
    more["io"]["wait"] = '"busy-poll"'
    server = make_server(lab, mode=mode, certificates=readable, prefix=UNPRIVILEGED, more=more)
    assert server.obtained() == mode
    fetch(server, readable)
    server.stop()


def test_a_wildcard_follows_addresses_through_the_agent(make_lab, make_agent, make_server, readable: Path) -> None:
    lab = make_lab(second_address=True)
    agent = make_agent(lab)
    later = lab.server["second_ipv4"]
    lab.run("server", "ip", "address", "del", f"{later}/24", "dev", "server0")
    listen = [f"0.0.0.0:{PORT}"]
    server = make_server(
        lab, listen=listen, certificates=readable, prefix=UNPRIVILEGED, more=io(agent)
    )
    fetch(server, readable)
    lab.run("server", "ip", "address", "add", f"{later}/24", "dev", "server0")

    def taken() -> float:
        return server.metrics().sum("xdp_packets_total", reason="taken")

    def is_taken() -> bool:
        before = taken()
        (answer,) = clients.fetch(lab, "quicgo", address(later), readable, ["/small.txt"])
        assert answer.status == 200
        return taken() > before

    wait_until(is_taken, "packets to the new address by AF_XDP")


GOES = {"killed": Agent.kill, "stopped": Agent.stop}


@pytest.mark.parametrize("way", list(GOES))
def test_an_agent_that_goes_in_mid_transfer_and_comes_back(
    make_lab, make_agent, make_server, readable: Path, way: str
) -> None:
    lab = make_lab()
    agent = make_agent(lab)
    server = make_server(lab, mode="copy", certificates=readable, prefix=UNPRIVILEGED, more=io(agent))
    with transfer(server, readable) as under_way:
        for times in (1, 2):
            GOES[way](agent)
            server.wait_for("its end seen", lambda m: m.sum("agent_connected") == 0)
            server.wait_log("agent connection lost", times)
            assert attached(lab), "the program went with the agent"
            # What it gave goes on as it was, while it is looked for.
            under_way.await_more("packets by AF_XDP", "rx_xsk_packets_total", 100)
            server.wait_for("searches", lambda m: m.sum("agent_reconnect_total", outcome="failed") >= 2 * times)
            agent.start()
            server.wait_for("the agent back", lambda m: m.sum("agent_connected") == 1)
            server.wait_for("opened by it", reattached("agent", times))
            under_way.await_more("packets by AF_XDP again", "rx_xsk_packets_total", 100)
            under_way.await_more("packets sent by AF_XDP", "tx_xsk_packets_total", 100)
            # The program is one of the new agent's, which tells its counters.
            under_way.await_more("packets taken", "xdp_packets_total")
    metrics = server.metrics()
    assert metrics.sum("listen", io="copy") == metrics.sum("agent_connected") == 1
    assert metrics.sum("agent_reconnect_total", outcome="connected") == 2
    server.stop()


def test_an_interface_that_is_made_again_while_the_agent_is_away(
    make_lab, make_agent, make_server, readable: Path
) -> None:
    lab = make_lab()
    agent = make_agent(lab)
    server = make_server(lab, mode="copy", certificates=readable, prefix=UNPRIVILEGED, more=io(agent))
    with transfer(server, readable) as under_way:
        agent.kill()
        links.remove(lab)
        server.wait_log("interface removed; kernel sockets serve")
        links.recreate(lab)
        under_way.await_more("packets by the kernel", "rx_kernel_packets_total", 100)
        agent.start()
        server.wait_for("reopened", reattached("removed"))
        under_way.await_more("packets by AF_XDP", "rx_xsk_packets_total", 100)


OTHER_RULES = {
    "user": (RULE.replace(str(NOBODY), "12345"), "agent reconnected but rejected us", "copy"),
    "interface": (RULE.replace("server0", "eth9"), "falling back to kernel UDP on this interface", "udp"),
}


@pytest.mark.parametrize("what", list(OTHER_RULES))
def test_an_agent_that_comes_back_with_other_rules(
    make_lab, make_agent, make_server, readable: Path, what: str
) -> None:
    lab = make_lab()
    agent = make_agent(lab)
    server = make_server(lab, mode="copy", certificates=readable, prefix=UNPRIVILEGED, more=io(agent))
    rule, said, mode = OTHER_RULES[what]
    with transfer(server, readable) as under_way:
        agent.kill()
        before = agent.config.read_text()
        agent.config.write_text(before.replace(RULE, rule))
        agent.start()
        server.wait_log(said)
        more = "rx_xsk_packets_total" if mode == "copy" else "rx_kernel_packets_total"
        under_way.await_more("packets", more, 100)
        assert server.metrics().sum("listen", io=mode) == 1
        # The rules of before again: so is the path.
        agent.kill()
        agent.config.write_text(before)
        agent.start()
        server.wait_for("opened by it", reattached("agent"))
        under_way.await_more("packets by AF_XDP", "rx_xsk_packets_total", 100)


def test_what_a_killed_client_had_is_taken_back(make_lab, make_agent, make_server, readable: Path) -> None:
    lab = make_lab()
    agent = make_agent(lab)
    server = make_server(lab, mode="copy", certificates=readable, prefix=UNPRIVILEGED, more=io(agent))
    fetch(server, readable)
    server.kill()
    wait_until(lambda: not attached(lab), "the program off")
    agent.wait_log("resources reclaimed")
    again = make_server(lab, mode="copy", certificates=readable, prefix=UNPRIVILEGED, more=io(agent))
    fetch(again, readable)


REFUSALS = {
    "address": (RULE.replace("0.0.0.0", "192.0.2.1"), ("rule `edge`", "is not in listen")),
    "port": (RULE.replace(str(PORT), "443"), ("rule `edge`", f":{PORT} is not in listen")),
    "interface": (RULE.replace("server0", "eth9"), ("rule `edge`", "interface server0")),
    "queue": (RULE + "queues = [7]", ("rule", "server0", "none of the requested", "queues")),
    "memory": (RULE + 'memory = "1MiB"', ("rule `edge`", "bytes of UMEM")),
    "workers": (RULE + "workers = 1", ("rule `edge`", "2 workers")),
    "replace": (RULE, ("rule `edge`", "replacing foreign XDP programs is not allowed")),
    "busy-poll": (RULE, ("rule `edge`", "busy polling is not allowed")),
    "user": (RULE.replace(str(NOBODY), "12345"), (f"uid {NOBODY}",)),
}


@pytest.mark.parametrize("what", list(REFUSALS))
def test_every_refusal_names_its_rule(make_lab, make_agent, make_server, readable: Path, what: str) -> None:
    lab = make_lab()
    rule, parts = REFUSALS[what]
    agent = make_agent(lab, rule)
    more = io(agent)
    if what == "replace":
        more["io"]["replace"] = "true"
    if what == "busy-poll":
        more["io"]["wait"] = '"busy-poll"'
    workers = 2 if what == "workers" else 1
    server = make_server(
        lab, ready=False, certificates=readable, prefix=UNPRIVILEGED, workers=workers, more=more
    )
    assert server.wait() == 1, server.log()
    last = server.log().strip().splitlines()[-1]
    assert all(part in last for part in parts), last
    if what != "queue":
        assert str(agent.socket) in last, last
    assert not attached(lab)


def test_clients_at_once_are_bounded_and_an_interface_has_one(
    make_lab, make_agent, make_server, readable: Path
) -> None:
    lab = make_lab()
    agent = make_agent(lab, RULE.replace("listen = [", 'listen = ["0.0.0.0:5555", ') + "clients = 2")
    first = make_server(lab, mode="copy", certificates=readable, prefix=UNPRIVILEGED, more=io(agent))
    # Another agent's client, by another port: the queues of the interface are the first one's.
    other = make_agent(lab, RULE.replace(str(PORT), "5555"))
    for another, reason in ((other, "expressway_udp"), (agent, "already in use by client 1")):
        server = make_server(
            lab,
            ready=False,
            admin=9181,
            certificates=readable,
            prefix=UNPRIVILEGED,
            listen=[address(lab.server["ipv4"], 5555)],
            more=io(another),
        )
        assert server.wait() == 1
        assert reason in server.log(), server.log()
    agent.wait_log("resources reclaimed")
    fourth_client = connect(agent.socket)
    fifth_client = connect(agent.socket)
    assert b"already has its maximum of" in fifth_client.recv(4096)
    fourth_client.close()
    fifth_client.close()
    fetch(first, readable)


def test_a_server_waits_for_a_place(make_lab, make_agent, make_server, readable: Path) -> None:
    lab = make_lab()
    agent = make_agent(lab, RULE + "clients = 1")
    former = AgentClient(agent.socket)
    server = make_server(lab, ready=False, certificates=readable, prefix=UNPRIVILEGED, more=io(agent))
    agent.wait_log("client rejected")
    former.close()
    server.wait_ready()
    fetch(server, readable)


HELLO = b'{"hello":{"client":"test"}}'

GARBAGE = {
    "not the protocol": b"GET / HTTP/1.1\r\n\r\n",
    "another version": message(HELLO, version=7),
    "longer than it says": message(HELLO, length=3),
    "no JSON": message(b"\xff\xfe"),
    "an unknown request": message(b'{"reboot":{}}'),
    "a missing descriptor": message(HELLO, fds=1),
    "empty": b"x",
    "oversized": message(b" " * 20000),
}


def test_clients_that_stall_or_send_garbage_are_dropped_and_delay_nobody(
    make_lab, make_agent, make_server, readable: Path
) -> None:
    lab = make_lab()
    agent = make_agent(lab, RULE + "clients = 32")
    # These say nothing, not even hello.
    silent = [connect(agent.socket) for _ in range(4)]
    for number, (name, garbage) in enumerate(GARBAGE.items()):
        connection = connect(agent.socket)
        connection.send(garbage)
        answer = connection.recv(1 << 16)
        assert b"refused" in answer, (name, answer)
        assert connection.recv(1 << 16) == b"", name
        agent.wait_log("client dropped", number + 1)
    # Requests in the wrong order are refused, and the connection goes on.
    early = connect(agent.socket)
    early.send(message(b'{"counters":{"interface":"server0"}}'))
    assert b"the first request must be hello" in early.recv(1 << 16)
    early.send(message(HELLO))
    assert b"welcome" in early.recv(1 << 16)
    early.send(message(b'{"add_pair":{"interface":"server0","pair":"192.0.2.77:%d"}}' % PORT))
    assert b"is not an address of server0" in early.recv(1 << 16)
    early.close()
    server = make_server(lab, mode="copy", certificates=readable, prefix=UNPRIVILEGED, more=io(agent))
    fetch(server, readable)
    # This one asks and never reads an answer, until the agent has had enough of it.
    stalled = connect(agent.socket)
    stalled.send(message(HELLO))
    with pytest.raises(OSError):
        while True:
            stalled.send(message(b'{"device":{"interface":"server0","ifindex":1}}'))
    agent.wait_log("timed out")
    agent.wait_log("client dropped", len(GARBAGE) + 1)
    fetch(server, readable)
    for connection in (stalled, *silent):
        connection.close()


def test_no_agent_and_a_bad_policy_are_named(make_lab, make_agent, make_server, readable: Path, tmp_path: Path) -> None:
    lab = make_lab()
    server = make_server(
        lab,
        ready=False,
        certificates=readable,
        prefix=UNPRIVILEGED,
        more={"io": {"agent": '"/nonexistent/agent.sock"'}},
    )
    assert server.wait() == 1
    assert "/nonexistent/agent.sock" in server.log() and "expressway agent" in server.log()
    policy = tmp_path / "bad.toml"
    policy.write_text('[agent]\nsocket = "s"\n\n[[allow]]\nname = "x"\nuser = [1]\n')
    command = [BINARY, "agent", "--config", policy, "--check"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert result.returncode == 2
    assert f"{policy}:6" in result.stderr and "did you mean `users`?" in result.stderr, result.stderr
    agent = make_agent(lab)
    second = subprocess.run(
        [BINARY, "agent", "--config", agent.config], capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert second.returncode == 1
    assert "another agent is listening there" in second.stderr, second.stderr
