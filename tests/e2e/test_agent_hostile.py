"""Clients of an agent, and strangers, that want more than they may have: memory, buffers, descriptors, its time, its log."""

import ctypes
import fcntl
import mmap
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import clients
from harness.agent import NOBODY, UNPRIVILEGED, Agent
from harness.agent_client import (
    AF_XDP,
    HELLO,
    SOL_XDP,
    XDP_TX_RING,
    AgentClient,
    Refused,
    connect,
    memory,
    message,
    share_umem,
)
from harness.namespace import run_inside
from harness.paths import LIMIT, PORT, open_to_all
from harness.server import address
from harness.threads import threads

MIB = 1 << 20
# A user of no rule.
STRANGER = 12345
# Another user of the rule than the server.
OTHER = 2222

RULE = f"""name = "edge"
users = [{NOBODY}, {OTHER}]
listen = ["0.0.0.0:{PORT}", "127.0.0.1:5555"]
interfaces = ["server0"]
"""


@pytest.fixture
def make_agent(tmp_path: Path) -> Iterator[Callable[..., Agent]]:
    """Starts agents that everyone can reach; they end with the test."""
    agents: list[Agent] = []
    open_to_all(tmp_path)

    def make(lab, rule: str = RULE, limits: str = "") -> Agent:
        agents.append(Agent(lab, tmp_path / f"agent-{len(agents)}", rule, limits=limits))
        return agents[-1]

    yield make
    for agent in agents:
        agent.stop()


def is_served(agent: Agent) -> None:
    """Another client of the rule is let in and answered."""
    client = AgentClient(agent.socket)
    client.ask({"device": {"interface": "server0", "ifindex": 1}})
    client.close()


def until(done: Callable[[], bool], what: str) -> None:
    """Waits for what the kernel or the agent does a little later."""
    deadline = time.monotonic() + LIMIT
    while not done():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def gets_memory(client: AgentClient, queue: int, size: int) -> int | None:
    """A socket, if the rule has as much memory."""
    try:
        return client.bind(queue, size)
    except Refused as refused:
        assert refused.code == "memory", refused
        return None


@pytest.mark.parametrize("way", ["attached again", "detached", "connected again"])
def test_memory_counts_as_long_as_it_is_held_whatever_became_of_its_program(make_lab, make_agent, way: str) -> None:
    lab = make_lab(queues=2)
    agent = make_agent(lab, RULE + 'memory = "3MiB"\n')
    client = AgentClient(agent.socket)
    links = [client.attach()]
    held = client.bind(0, 2 * MIB)
    assert gets_memory(client, 1, 2 * MIB) is None, "at once it is too much anyway"
    if way == "detached":
        client.detach()
    if way == "connected again":
        client.close()
        until(lambda: "resources reclaimed" in agent.log(), "the end of its connection")
        client = AgentClient(agent.socket)
    links.append(client.attach())
    assert gets_memory(client, 1, 2 * MIB) is None, f"{way}, the memory of before was forgotten"
    # What is left of it may be had, and all of it once the socket is closed.
    small = client.bind(1, MIB)
    os.close(held)
    os.close(small)
    until(lambda: gets_memory(client, 1, 2 * MIB) is not None, "closed, it is free")
    assert "xdp" in lab.run("server", "ip", "link", "show", "server0")
    for link in links:
        os.close(link)
    client.close()


def test_memory_counts_that_another_socket_in_another_namespace_shares(make_lab, make_agent) -> None:
    lab = make_lab(queues=2)
    agent = make_agent(lab, RULE + 'memory = "3MiB"\n')
    client = AgentClient(agent.socket)
    link = client.attach()
    given = client.bind(0, 2 * MIB)
    # In the client's namespace, where it may be root for all that the agent knows.
    shared = run_inside(lab.client_namespace, lambda: share_umem(given, "client0"))
    os.close(given)
    # Its queue is free, its memory is not.
    until(lambda: gets_memory(client, 0, MIB) is not None, "the queue was released")
    assert gets_memory(client, 1, MIB) is None
    shared.close()
    until(lambda: gets_memory(client, 1, MIB) is not None, "now it is")
    os.close(link)
    client.close()


def test_memory_cannot_be_hidden(make_lab, make_agent) -> None:
    lab = make_lab(queues=2)
    agent = make_agent(lab, RULE + 'memory = "3MiB"\n')
    client = AgentClient(agent.socket)
    link = client.attach()
    own = memory(2 * MIB)
    held = client.bind(0, 2 * MIB, fd=os.dup(own))
    # A hole would take the pages out of the file, and leave them to the socket.
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.fallocate(own, 3, ctypes.c_long(0), ctypes.c_long(2 * MIB)) == -1
    # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE; a writable mapping would do the same by MADV_REMOVE.
    with pytest.raises(PermissionError):
        mmap.mmap(own, 2 * MIB)
    # F_SEAL_SEAL keeps the kernel from telling: then it counts for good.
    fcntl.fcntl(own, 1033, 1)
    client.attach()
    os.close(held)
    os.close(own)
    time.sleep(0.3)
    assert gets_memory(client, 0, 2 * MIB) is None
    os.close(link)
    client.close()


def test_those_that_are_gone_and_keep_sockets_are_bounded(make_lab, make_agent) -> None:
    lab = make_lab(queues=2)
    agent = make_agent(lab)
    kept = []
    for queue in range(2):
        until(lambda: agent.log().count("resources reclaimed") == queue, "the end of the one before")
        client = AgentClient(agent.socket)
        link = client.attach()
        kept.append(client.bind(queue, MIB))
        os.close(link)
        client.close()
    until(lambda: agent.log().count("resources reclaimed") == 2, "the end of the last")
    until(lambda: b"disconnected clients still hold" in connect(agent.socket).recv(4096), "a third has no place")
    os.close(kept.pop())
    until(lambda: b"refused" not in greet(agent), "the first that lets go makes room")
    os.close(kept.pop())
    until(lambda: serving(agent) == 0, "nothing is left of them")


def last_words(connection: socket.socket) -> bytes:
    """What the agent has said, also if it did not read all that was sent."""
    try:
        return connection.recv(4096)
    except ConnectionResetError:
        return connection.recv(4096)


def greet(agent: Agent) -> bytes:
    """Says hello; the answer."""
    with connect(agent.socket) as connection:
        try:
            connection.send(message(b'{"hello":{"client":"x"}}'))
        except OSError:
            pass
        return last_words(connection)


def serving(agent: Agent) -> int:
    """Threads of the agent that serve clients, or turn them away."""
    return len(threads(agent.process.pid, "agent-client", "agent-refusal"))


@pytest.mark.parametrize("way", ["receive_buffer", "send_buffer"])
def test_socket_buffers_are_the_rules(make_lab, make_agent, way: str) -> None:
    lab = make_lab(queues=2)
    agent = make_agent(lab, RULE + 'socket_buffer = "1MiB"\n')
    client = AgentClient(agent.socket)
    wanted = {
        "listen": "127.0.0.1:5555", "workers": 1, "steering": None, "gro": True, "receive_buffer": MIB,
        "send_buffer": MIB, "busy_poll": None,
    }  # fmt: skip
    for bytes_ in (2 * MIB, 0xFFFF_FFFF):
        with pytest.raises(Refused, match="socket_buffer") as refused:
            client.ask({"udp": wanted | {way: bytes_}})
        assert refused.value.code == "buffer"
    _, (fd,) = client.ask({"udp": wanted})
    given = socket.socket(fileno=fd)
    # The kernel counts twice as much (socket(7)).
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        assert given.getsockopt(socket.SOL_SOCKET, option) == 2 * MIB
    given.close()
    client.close()


def test_the_default_of_socket_buffers_is_a_bound(make_lab, make_agent, make_server, readable: Path) -> None:
    lab = make_lab(queues=2)
    agent = make_agent(lab)
    more = {"io": {"agent": f'"{agent.socket}"', "socket_buffer": '"17MiB"'}}
    server = make_server(lab, ready=False, certificates=readable, prefix=UNPRIVILEGED, more=more)
    assert server.wait() == 1
    assert "rule `edge`: a socket buffer of 17825792 bytes exceeds socket_buffer (16777216)" in server.log()


def test_sockets_that_only_receive_are_a_rule(make_lab, make_agent, make_server, readable: Path) -> None:
    lab = make_lab(queues=2)
    agent = make_agent(lab, RULE + "transmit = false\n")
    client = AgentClient(agent.socket)
    link = client.attach()
    with pytest.raises(Refused, match="receive-only") as refused:
        client.bind(0, MIB, sends=True)
    assert refused.value.code == "transmit"
    receives = socket.socket(AF_XDP, socket.SOCK_RAW, 0, client.bind(0, MIB, sends=False))
    # A bound socket gets no ring any more.
    with pytest.raises(OSError, match="busy"):
        receives.setsockopt(SOL_XDP, XDP_TX_RING, struct.pack("I", 64))
    receives.close()
    os.close(link)
    client.close()
    until(lambda: serving(agent) == 0, "nothing is left of it")
    more = {"io": {"agent": f'"{agent.socket}"'}}
    server = make_server(lab, mode="copy", ready=False, certificates=readable, prefix=UNPRIVILEGED, more=more)
    assert server.wait() == 1
    assert "the agent's rule only allows receive-only sockets" in server.log() and "--io hybrid or auto" in server.log()
    for mode in ("auto", "hybrid"):
        server = make_server(lab, mode=mode, certificates=readable, prefix=UNPRIVILEGED, more=more)
        assert server.obtained() == "hybrid"
        (answer,) = clients.fetch(lab, "quicgo", address(lab.server["ipv4"]), readable, ["/clip.mp4"])
        assert answer.status == 200
        metrics = server.wait_for("packets", lambda m: m.sum("rx_xsk_packets_total") > 0)
        assert metrics.sum("tx_xsk_packets_total") == 0
        server.stop()
        until(lambda: serving(agent) == 0, "nothing is left of it")


def test_copy_mode_alone_is_a_rule(make_lab, make_agent) -> None:
    lab = make_lab(queues=2)
    agent = make_agent(lab, RULE + "zero_copy = false\n")
    client = AgentClient(agent.socket)
    link = client.attach()
    with pytest.raises(Refused, match="zero-copy is not allowed") as refused:
        client.bind(0, MIB, mode="zero_copy")
    assert refused.value.code == "zero_copy"
    os.close(client.bind(0, MIB, mode="copy"))
    os.close(link)
    client.close()


def leave_lingering(path: Path, uid: int) -> socket.socket:
    """Leaves with the agent a TCP socket whose last close waits for an hour; its peer. A process of its own does that and ends,
    for which the kernel waits for nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        made = socket.create_connection(listener.getsockname())
        peer, _ = listener.accept()
    made.setblocking(False)
    try:
        while True:
            made.send(bytes(1 << 16))
    except BlockingIOError:
        pass
    made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 3600))
    until_told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            connection = connect(path, uid)
            os.read(until_told, 1)
            try:
                socket.send_fds(connection, [message(b"{}", fds=1)], [made.fileno()])
            except OSError:
                # It was turned away before.
                pass
            code = 0
        finally:
            os._exit(code)
    # Not the last one yet.
    made.close()
    os.write(tell, b"x")
    assert os.waitpid(pid, 0)[1] == 0
    os.close(until_told)
    os.close(tell)
    return peer


@pytest.mark.parametrize("uid", [STRANGER, OTHER], ids=["stranger", "client"])
def test_descriptors_whose_close_waits_hold_up_nobody(make_lab, make_agent, uid: int) -> None:
    lab = make_lab()
    agent = make_agent(lab, RULE + "clients = 2\n")
    peers = [leave_lingering(agent.socket, uid) for _ in range(5)]
    until(lambda: serving(agent) == 0, "nothing is left of them")
    is_served(agent)
    for peer in peers:
        peer.close()


def test_floods_of_descriptors_are_their_senders_affair(make_lab, make_agent, make_server, readable: Path) -> None:
    lab = make_lab(queues=2)
    agent = make_agent(lab, RULE + "clients = 8\n")
    more = {"io": {"agent": f'"{agent.socket}"'}}
    server = make_server(lab, mode="copy", certificates=readable, prefix=UNPRIVILEGED, more=more)
    folder = Path(f"/proc/{agent.process.pid}/fd")
    before = len(list(folder.iterdir()))
    fds = [os.dup(0) for _ in range(253)]
    for _ in range(200):
        with connect(agent.socket, OTHER) as connection:
            try:
                for _ in range(4):
                    # SCM_MAX_FD of them beside what says nothing of them.
                    socket.send_fds(connection, [message(b'{"hello":{"client":"x"}}')], fds)
            except OSError:
                pass
            assert b"descriptors announced" in last_words(connection)
    # One that sends none is let in meanwhile, and the one that is there goes on.
    until(lambda: serving(agent) <= 1, "they are gone")
    is_served(agent)
    assert len(list(folder.iterdir())) <= before + 1
    (answer,) = clients.fetch(lab, "quicgo", address(lab.server["ipv4"]), readable, ["/small.txt"])
    assert answer.status == 200 and server.metrics().sum("agent_connected") == 1
    for fd in fds:
        os.close(fd)


def test_a_client_uses_up_its_own_descriptors(make_lab, make_agent) -> None:
    lab = make_lab(queues=2)
    agent = make_agent(lab, RULE + "clients = 2\n")
    client = AgentClient(agent.socket)
    (task,) = threads(agent.process.pid, "agent-client")
    theirs = {os.readlink(path) for path in (task / "fd").iterdir()}
    own = {os.readlink(path) for path in Path(f"/proc/{agent.process.pid}/fd").iterdir()}
    assert len(theirs - own) == 1, "the connection is in a table of its thread alone"
    link = client.attach()
    held = client.bind(0, MIB)
    assert {os.readlink(path) for path in Path(f"/proc/{agent.process.pid}/fd").iterdir()} == own
    os.close(link)
    os.close(held)
    client.close()


def test_floods_of_requests_are_answered_at_a_rate(make_lab, make_agent, make_server, readable: Path) -> None:
    lab = make_lab(queues=2)
    agent = make_agent(lab, RULE + "clients = 8\n")
    more = {"io": {"agent": f'"{agent.socket}"'}}
    server = make_server(lab, mode="copy", certificates=readable, prefix=UNPRIVILEGED, more=more)
    client = AgentClient(agent.socket, OTHER)
    begun, answers, under_way = time.monotonic(), 0, 0
    while answers < 6000:
        while under_way < 50:
            client.send({"counters": {"interface": "server0"}})
            under_way += 1
        with pytest.raises(Refused):
            client.receive()
        answers, under_way = answers + 1, under_way - 1
    passed = time.monotonic() - begun
    # A burst, and then 500 a second; those of the server are among them.
    assert answers <= 4096 + 500 * passed + 1
    (answer,) = clients.fetch(lab, "quicgo", address(lab.server["ipv4"]), readable, ["/small.txt"])
    assert answer.status == 200 and server.metrics().sum("agent_connected") == 1
    # Not a line each.
    assert agent.log().count("has no program attached") <= 50 + passed + 1
    client.close()


def test_programs_come_and_go_at_a_rate(make_lab, make_agent) -> None:
    lab = make_lab(queues=2)
    agent = make_agent(lab, RULE + "clients = 2\n")
    client = AgentClient(agent.socket)
    begun, changes = time.monotonic(), 0
    while changes < 72:
        os.close(client.attach())
        client.detach()
        changes += 2
    assert changes <= 64 + 2 * (time.monotonic() - begun) + 1
    # Whoever connects again has no other measure.
    now = time.monotonic()
    client.close()
    until(lambda: serving(agent) == 0, "its end")
    again = AgentClient(agent.socket)
    for _ in range(2):
        os.close(again.attach())
    assert 2 <= 2 * (time.monotonic() - now) + 1.1
    # It delays nobody else.
    is_served(agent)
    again.close()


def test_strangers_fill_neither_log_nor_places(make_lab, make_agent) -> None:
    lab = make_lab(queues=2)
    agent = make_agent(lab)
    begun = time.monotonic()
    for _ in range(500):
        with connect(agent.socket, STRANGER) as connection:
            assert f"uid {STRANGER}".encode() in connection.recv(4096)
    is_served(agent)
    said = agent.log().count("client rejected")
    assert 50 <= said <= 50 + (time.monotonic() - begun) + 1
    until(lambda: serving(agent) == 0, "nothing is left of them")


def test_who_does_not_say_hello_holds_its_place_for_a_while_only(make_lab, make_agent) -> None:
    lab = make_lab(queues=2)
    agent = make_agent(lab)
    silent = connect(agent.socket, OTHER)
    assert b"already has its maximum of 1 clients" in connect(agent.socket).recv(4096)
    agent.wait_log("client dropped")
    assert b"timed out" in silent.recv(4096) and silent.recv(4096) == b""
    until(lambda: serving(agent) == 0, "its place is free")
    is_served(agent)
    silent.close()


NAMES = {
    "long": "x" * 15000,
    "a line of the log": "eth0\nWARN forged",
    "an escape": "\x1b[2J",
    "a path": "../../etc",
    "empty": "",
    "of two words": "eth0 eth1",
}


@pytest.mark.parametrize("what", list(NAMES))
def test_names_are_names(make_lab, make_agent, what: str) -> None:
    name = NAMES[what]
    lab = make_lab(queues=2)
    agent = make_agent(lab, RULE.replace("server0", "*"))
    client = AgentClient(agent.socket, hello=False)
    client.ask({"hello": {"client": name}})
    for request in (
        {"device": {"interface": name, "ifindex": 1}},
        {"attach": {"interface": name, "queues": 1, "generic": False, "replace": False, "timestamps": False}},
        {"add_pair": {"interface": name, "pair": f"192.0.2.1:{PORT}"}},
        {"detach": {"interface": name}},
    ):
        with pytest.raises(Refused, match="invalid interface name"):
            client.ask(request)
    with pytest.raises(Refused, match="repeated hello"):
        client.ask(HELLO)
    # What is no request is said in as few words.
    client.send({name: {}})
    with pytest.raises(Refused, match="malformed"):
        client.receive()
    agent.wait_log("client dropped")
    log = agent.log()
    assert "\x1b[2J" not in log and not any(line.startswith("WARN forged") for line in log.splitlines())
    assert max(map(len, log.splitlines())) < 600
    client.close()


def test_nothing_is_no_request(make_lab, make_agent) -> None:
    lab = make_lab(queues=2)
    agent = make_agent(lab)
    for _ in range(3):
        # A message of no bytes is an end, also with a descriptor.
        with connect(agent.socket) as connection:
            socket.send_fds(connection, [b""], [0])
            until(lambda: connection.recv(4096) in (b"", None), "it is over")
        until(lambda: serving(agent) == 0, "its place is free")
    is_served(agent)


def test_what_is_another_clients_is_not_given(make_lab, make_agent) -> None:
    lab = make_lab(queues=2)
    agent = make_agent(lab, RULE + "clients = 2\nqueues = [0]\n")
    first, second = AgentClient(agent.socket), AgentClient(agent.socket, OTHER)
    link = first.attach()
    held = first.bind(0, MIB)
    for request in (
        {"counters": {"interface": "server0"}},
        {"attached": {"interface": "server0"}},
        {"add_pair": {"interface": "server0", "pair": f"{lab.server['ipv4']}:{PORT}"}},
        {"remove_pair": {"interface": "server0", "pair": f"{lab.server['ipv4']}:{PORT}"}},
    ):
        with pytest.raises(Refused, match="this client has no program attached"):
            second.ask(request)
    with pytest.raises(Refused, match="this client has no program attached"):
        second.bind(0, MIB)
    with pytest.raises(Refused, match="already in use by client 1") as refused:
        second.attach()
    assert refused.value.code == "taken"
    # It is not the second's to take off.
    second.detach()
    first.ask({"attached": {"interface": "server0"}})
    with pytest.raises(Refused, match="queue 1 of server0 is not in queues"):
        first.bind(1, MIB)
    os.close(link)
    os.close(held)
    first.close()
    second.close()


def test_an_interface_whose_client_goes_is_the_nexts(make_lab, make_agent) -> None:
    lab = make_lab(queues=2)
    agent = make_agent(lab, RULE + "clients = 2\n")
    first, second = AgentClient(agent.socket), AgentClient(agent.socket, OTHER)
    os.close(first.attach())
    attach = {"interface": "server0", "queues": 2, "generic": False, "replace": False, "timestamps": False}
    second.send({"attach": attach})
    time.sleep(0.2)
    first.close()
    _, links = second.receive()
    os.close(links[0])
    second.close()


def test_the_link_alone_keeps_no_program_on_an_interface(make_lab, make_agent) -> None:
    lab = make_lab(queues=2)
    agent = make_agent(lab)
    client = AgentClient(agent.socket)
    link = client.attach()
    assert "xdp" in lab.run("server", "ip", "link", "show", "server0")
    client.close()
    until(lambda: "xdp" not in lab.run("server", "ip", "link", "show", "server0"), "the program off")
    os.close(link)


def test_sockets_that_hear_of_changes_are_few(make_lab, make_agent) -> None:
    lab = make_lab(queues=2)
    agent = make_agent(lab)
    client = AgentClient(agent.socket)
    for _ in range(32):
        os.close(client.ask({"netlink": {"usage": "changes"}})[1][0])
    with pytest.raises(Refused, match="more than 32 rtnetlink sockets"):
        client.ask({"netlink": {"usage": "changes"}})
    os.close(client.ask({"netlink": {"usage": "requests"}})[1][0])
    client.close()
