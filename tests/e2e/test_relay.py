"""`expressway relay` over a veth: ffmpeg publishes and plays, and sockets of the tests do what ffmpeg does not."""

import os
import re
import signal
import socket
import struct
import subprocess
import time
from pathlib import Path

import pytest
from harness.agent import NOBODY, UNPRIVILEGED
from harness.lab import Lab
from harness.namespace import run_inside
from harness.paths import BINARY, CLIP, LIMIT, open_to_all, run
from harness.rtp import Packet, Socket, nack, packets, pli, rtcp, sender_report
from harness.server import address

IN, OUT = 5004, 6004
GROUP, GROUP_OUT = "239.9.9.9", "239.9.9.10"


def room(lab: Lab, *more: str, name: str = "studio", rtp_in: str = "", out: tuple[str, ...] = (), head: str = "") -> str:
    """A room on the server's address, with receivers on the client's."""
    outs = ", ".join(f'"{one}"' for one in out)
    rtp_in = rtp_in or address(lab.server["ipv4"], IN)
    return "\n".join([head, "[[room]]", f'name = "{name}"', f'rtp_in = "{rtp_in}"', f"rtp_out = [{outs}]", *more, ""])


def frames(lines: str) -> list[str]:
    """The hashes of framemd5."""
    return [line.split(",")[-1].strip() for line in lines.splitlines() if line and not line.startswith("#")]


def is_bound(lab: Lab, port: int) -> bool:
    """Whether somebody in the client's namespace receives there."""
    return bool(lab.run("client", "ss", "-Huln", f"sport = :{port}").strip())


@pytest.mark.parametrize("mode", ["copy", "udp"])
def test_ffmpeg_publishes_and_ffmpeg_plays(make_lab, make_relay, tmp_path: Path, mode: str) -> None:
    lab = make_lab()
    client, server = lab.client["ipv4"], lab.server["ipv4"]
    changed = f'[[room.out]]\naddress = "{client}:7004"\nssrc = 99\npayload_types = {{ 96 = 100 }}'
    relay = make_relay(lab, room(lab, changed, out=(f"{client}:{OUT}",)), "--io", mode)
    assert relay.lines()[0]["ready"]["io"] == mode
    # No B-frames, so that a decoder holds nothing back.
    source = tmp_path / "source.mp4"
    run(["ffmpeg", "-nostdin", "-v", "error", "-i", CLIP, "-t", "3", "-an", "-vf", "scale=320:-2", "-c:v", "libx264",
         "-preset", "ultrafast", "-tune", "zerolatency", "-g", "15", "-bf", "0", source])
    wanted = frames(run(["ffmpeg", "-nostdin", "-v", "error", "-i", source, "-fps_mode", "passthrough", "-f", "framemd5", "-"]))
    # What a publisher says of itself, on a port that nobody has.
    sdp = tmp_path / "published.sdp"
    publish = ["ffmpeg", "-nostdin", "-v", "error", "-re", "-i", source, "-c", "copy", "-an", "-sdp_file", sdp, "-f", "rtp"]
    lab.run("client", *publish, "-t", "0.1", f"rtp://{server}:4000")
    text = sdp.read_text()
    players = []
    for port, kind in ((OUT, 96), (7004, 100)):
        described = tmp_path / f"{port}.sdp"
        described.write_text(re.sub(r"\b96\b", str(kind), re.sub(r"m=video \d+", f"m=video {port}", text)).replace(server, client))
        command = ["ffmpeg", "-nostdin", "-v", "error", "-protocol_whitelist", "file,udp,rtp", "-i", described, "-fps_mode",
                   "passthrough", "-frames:v", str(len(wanted) - 2), "-f", "framemd5", tmp_path / f"{port}.md5"]
        players.append(subprocess.Popen(lab.inside("client", *command), stderr=subprocess.PIPE, text=True))
    deadline = time.monotonic() + LIMIT
    while not (is_bound(lab, OUT) and is_bound(lab, 7004)):
        assert time.monotonic() < deadline, [player.poll() for player in players]
        time.sleep(0.05)
    lab.run("client", *publish, f"rtp://{server}:{IN}")
    for player, port in zip(players, (OUT, 7004), strict=True):
        # It may wait for the frame behind the last one: what it has is compared.
        try:
            player.wait(10)
        except subprocess.TimeoutExpired:
            player.send_signal(signal.SIGINT)
            player.wait(LIMIT)
        got = frames((tmp_path / f"{port}.md5").read_text())
        assert len(got) >= len(wanted) - 4, f"{len(got)} of {len(wanted)}: {player.stderr.read()}"
        assert got == wanted[: len(got)]
    relay.wait_metric("relay_packets_total", len(wanted))
    # Counters are shown within a tenth of a second.
    time.sleep(0.3)
    metrics = relay.metrics()
    assert metrics.sum("relay_lost") == 0
    assert metrics.sum("relay_receiver_packets_total", receiver=f"{client}:{OUT}") == metrics.sum("relay_packets_total")
    # ffmpeg reports on what it receives, and hears sender reports.
    assert metrics.sum("relay_dropped_rtcp_malformed_total") == 0


@pytest.mark.parametrize("family", ["ipv4", "ipv6"])
@pytest.mark.parametrize("mode", ["auto", "copy", "generic", "udp"])
def test_every_packet_reaches_every_receiver_in_order(make_lab, make_relay, mode: str, family: str) -> None:
    lab = make_lab()
    client, server = lab.client[family], lab.server[family]
    receivers = [Socket(lab, client, 10_000 + 2 * number) for number in range(40)]
    outs = tuple(address(client, 10_000 + 2 * number) for number in range(40))
    make_relay(lab, room(lab, rtp_in=address(server, IN), out=outs), "--io", mode)
    sent = packets(400)
    Socket(lab, client, 5000).send(sent, (server, IN), pause=0.05)
    for receiver in receivers:
        assert receiver.take(len(sent)) == sent


def test_rooms_are_dealt_out_to_workers_and_kept_apart(make_lab, make_relay) -> None:
    lab = make_lab()
    client, server = lab.client["ipv4"], lab.server["ipv4"]
    text = "workers = 2\n" + "".join(
        room(lab, name=f"room {number}", rtp_in=f"{server}:{5000 + 10 * number}", out=(f"{client}:{6000 + 10 * number}",))
        for number in range(6)
    )
    relay = make_relay(lab, text, count=6)
    receivers = [Socket(lab, client, 6000 + 10 * number) for number in range(6)]
    for number, receiver in enumerate(receivers):
        sent = packets(100, ssrc=number)
        Socket(lab, client, 0).send(sent, (server, 5000 + 10 * number))
        assert receiver.take(100) == sent
        assert receiver.receive(0.05) is None
    assert relay.metrics().sum("relay_dropped_handover_total") == 0


@pytest.mark.parametrize("mode", ["copy", "udp"])
def test_groups_in_and_out(make_lab, make_relay, mode: str) -> None:
    lab = make_lab()
    client, server = lab.client["ipv4"], lab.server["ipv4"]
    text = room(lab, f'from = "{server}:{IN}"', 'interface = "server0"', rtp_in=f"{GROUP}:{IN}", out=(f"{GROUP_OUT}:{OUT}",))
    make_relay(lab, "ttl = 4\n" + text, "--io", mode)
    member = Socket(lab, GROUP_OUT, OUT)
    index = run_inside(lab.client_namespace, lambda: socket.if_nametoindex("client0"))
    request = socket.inet_aton(GROUP_OUT) + bytes(4) + struct.pack("=I", index)
    member.socket.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, request)
    member.socket.setsockopt(socket.IPPROTO_IP, 12, 1)  # IP_RECVTTL
    publisher = Socket(lab, client, 5000, interface="client0")
    sent = packets(50)
    publisher.send(sent[:1], (GROUP, IN))
    data, more, _, (source, port) = member.socket.recvmsg(2048, 64)
    assert (Packet.read(data), source, port) == (sent[0], server, IN)
    assert more[0][2][0] == 4, "the TTL"
    publisher.send(sent[1:], (GROUP, IN))
    assert member.take(49) == sent[1:]


def test_datagrams_that_are_no_rtp_pass_unchanged(make_lab, make_relay) -> None:
    lab = make_lab()
    client, server = lab.client["ipv4"], lab.server["ipv4"]
    relay = make_relay(lab, room(lab, 'payload = "any"', out=(f"{client}:{OUT}",)))
    receiver, publisher = Socket(lab, client, OUT), Socket(lab, client, 5000)
    # MPEG-TS: seven packets a datagram.
    sent = [b"\x47" + os.urandom(187 * 7 + 6) for _ in range(100)]
    for number, data in enumerate(sent):
        publisher.socket.sendto(data, (server, IN))
        if number % 32 == 31:
            time.sleep(0.002)
    assert [receiver.receive() for _ in sent] == sent
    publisher.socket.sendto(bytes(1501), (server, IN))
    publisher.socket.sendto(b"", (server, IN))
    relay.wait_metric("relay_dropped_malformed_total", 1)
    relay.wait_metric("relay_dropped_too_long_total", 1)


def test_a_receiver_gets_again_what_it_lost_and_no_more_than_its_share(make_lab, make_relay) -> None:
    lab = make_lab()
    client, server = lab.client["ipv4"], lab.server["ipv4"]
    relay = make_relay(lab, room(lab, 'rtcp = "mux"', "history = 1024", out=(f"{client}:{OUT}",)))
    receiver, publisher = Socket(lab, client, OUT), Socket(lab, client, 5000)
    sent = packets(600, first=65_300)
    publisher.send(sent, (server, IN))
    receiver.take(600)
    wanted = [packet for packet in sent if packet.sequence in (65_535, 65_536, 65_700)]
    receiver.socket.sendto(nack(sent[0].ssrc, *(packet.sequence & 0xFFFF for packet in wanted)), (server, IN))
    again = receiver.take(3)
    assert [packet.payload for packet in again] == [packet.payload for packet in wanted]
    # What was never there, and of another stream.
    receiver.socket.sendto(nack(sent[0].ssrc, 9000), (server, IN))
    receiver.socket.sendto(nack(77, 65_535), (server, IN))
    # Who asks for everything again and again gets a quarter of what there is.
    for _ in range(20):
        receiver.socket.sendto(nack(sent[0].ssrc, *(packet.sequence & 0xFFFF for packet in sent[:300])), (server, IN))
        time.sleep(0.01)
    relay.wait_metric("relay_receiver_repairs_refused_total", 1)
    time.sleep(0.1)
    metrics = relay.metrics()
    assert metrics.sum("relay_receiver_repairs_total") <= 256 + 600 // 4
    assert metrics.sum("relay_receiver_packets_total") <= 600 + 256 + 600 // 4


def test_what_the_relay_misses_it_asks_the_publisher_for(make_lab, make_relay) -> None:
    lab = make_lab()
    client, server = lab.client["ipv4"], lab.server["ipv4"]
    relay = make_relay(lab, room(lab, out=(f"{client}:{OUT}",)))
    receiver, publisher, control = (Socket(lab, client, port) for port in (OUT, 5000, 5001))
    sent = packets(20)
    publisher.send([packet for packet in sent if packet.sequence not in (7, 9)], (server, IN))
    receiver.take(18)
    # As soon as a gap is seen: 9 may be in the bitmask of the one report, or in another report.
    asked: set[int] = set()
    while asked < {7, 9}:
        body = control.report(205, 1)
        assert struct.unpack("!I", body[4:8])[0] == sent[0].ssrc
        first, others = struct.unpack("!HH", body[8:12])
        asked |= {first, *(first + 1 + bit for bit in range(16) if others >> bit & 1)}
    assert asked == {7, 9}
    publisher.send([sent[7], sent[9], sent[9]], (server, IN))
    assert receiver.take(2) == [sent[7], sent[9]]
    relay.wait_metric("relay_dropped_duplicate_total", 1)
    # Found: it is not asked for again, and no loss.
    body = control.report(201, 1)
    block = struct.unpack("!IIIIII", body[4:28])
    assert block[0] == sent[0].ssrc and block[2] == 19
    assert relay.metrics().sum("relay_lost") == 0


def test_key_frames_are_asked_for_once_however_many_ask(make_lab, make_relay) -> None:
    lab = make_lab()
    client, server = lab.client["ipv4"], lab.server["ipv4"]
    receivers = [Socket(lab, client, 10_000 + number) for number in range(20)]
    outs = tuple(f"{client}:{10_000 + number}" for number in range(20))
    relay = make_relay(lab, room(lab, 'rtcp = "mux"', 'keyframe_interval = "1m"', out=outs))
    publisher = Socket(lab, client, 5000)
    publisher.send(packets(1), (server, IN))
    for receiver in receivers:
        receiver.take(1)
        receiver.socket.sendto(pli(0x1000), (server, IN))
    relay.wait_metric("relay_keyframes_wanted_total", 20)
    body = publisher.report(206, 1)
    assert struct.unpack("!I", body[4:8])[0] == 0x1000
    relay.wait_metric("relay_keyframes_asked_total", 1)
    assert relay.metrics().sum("relay_keyframes_asked_total") == 1


def test_reports_go_both_ways(make_lab, make_relay, tmp_path: Path) -> None:
    """A sender report reaches receivers with the numbers that they see, and what they say of their reception is shown."""
    lab = make_lab()
    client, server = lab.client["ipv4"], lab.server["ipv4"]
    changed = f'[[room.out]]\naddress = "{client}:7004"\nssrc = 99'
    relay = make_relay(lab, room(lab, changed, out=(f"{client}:{OUT}",)))
    plain, other = Socket(lab, client, OUT + 1), Socket(lab, client, 7005)
    publisher, control = Socket(lab, client, 5000), Socket(lab, client, 5001)
    publisher.send(packets(3), (server, IN))
    ntp = 0x1234_5678_9ABC_DEF0
    control.socket.sendto(sender_report(0x1000, ntp, 6000, 3, 3000) + rtcp(202, 0, b""), (server, IN + 1))
    for receiver, ssrc in ((plain, 0x1000), (other, 99)):
        body = receiver.report(200)
        assert struct.unpack("!IQIII", body[:24]) == (ssrc, ntp, 6000, 3, 3000)
    # Lost 5, jitter 8; the report was heard 0 s ago.
    block = struct.pack("!IIIIII", 99, 64 << 24 | 5, 2, 8, (ntp >> 16) & 0xFFFFFFFF, 0)
    other.socket.sendto(struct.pack("!BBHI", 0x81, 201, 7, 1) + block, (server, IN + 1))
    receiver = f"{client}:7004"
    relay.wait_metric("relay_receiver_lost", 5, receiver=receiver)
    metrics = relay.metrics()
    assert metrics.sum("relay_receiver_jitter", receiver=receiver) == 8
    assert metrics.sum("relay_receiver_round_trip_microseconds", receiver=receiver) > 0
    # The publisher hears when its report was heard.
    publisher.send(packets(1, first=3), (server, IN))
    deadline = time.monotonic() + LIMIT
    while struct.unpack("!I", control.report(201, 1)[20:24])[0] != (ntp >> 16) & 0xFFFFFFFF:
        assert time.monotonic() < deadline


def test_another_publisher_waits_for_the_first_to_end(make_lab, make_relay) -> None:
    lab = make_lab()
    client, server = lab.client["ipv4"], lab.server["ipv4"]
    changed = f'[[room.out]]\naddress = "{client}:7004"\nssrc = 99'
    relay = make_relay(lab, room(lab, 'publisher_timeout = "1m"', f'allow = ["{client}/32"]', changed, out=(f"{client}:{OUT}",)))
    plain, other = Socket(lab, client, OUT), Socket(lab, client, 7004)
    first, second = Socket(lab, client, 5000), Socket(lab, client, 5100)
    first.send(packets(2, first=10), (server, IN))
    second.send(packets(2, first=500, ssrc=0x2000), (server, IN))
    relay.wait_metric("relay_dropped_second_publisher_total", 2)
    # A NAT gave the first another port: it goes on.
    moved = Socket(lab, client, 5200)
    moved.send(packets(1, first=12), (server, IN))
    assert [packet.sequence for packet in plain.take(3)] == [10, 11, 12]
    # It says goodbye.
    Socket(lab, client, 5201).socket.sendto(rtcp(201, 0, struct.pack("!I", 1)) + rtcp(203, 1, struct.pack("!I", 0x1000)), (server, IN + 1))
    deadline = time.monotonic() + LIMIT
    while relay.metrics().sum("relay_publishing"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    second.send(packets(2, first=500, ssrc=0x2000), (server, IN))
    assert [(packet.ssrc, packet.sequence) for packet in plain.take(2)] == [(0x2000, 500), (0x2000, 501)]
    seen = other.take(5)
    assert {packet.ssrc for packet in seen} == {99}
    assert [packet.sequence for packet in seen] == [10, 11, 12, 13, 14], "receivers with an SSRC of their own see it go on"
    relay.wait_metric("relay_publishers_total", 2)


def test_who_may_not_publish_is_dropped_and_so_is_what_is_no_rtp(make_lab, make_relay) -> None:
    lab = make_lab()
    client, server = lab.client["ipv4"], lab.server["ipv4"]
    relay = make_relay(lab, room(lab, 'allow = ["203.0.113.0/24"]', out=(f"{client}:{OUT}",)))
    publisher = Socket(lab, client, 5000)
    publisher.send(packets(3), (server, IN))
    relay.wait_metric("relay_dropped_not_allowed_total", 3)
    relay.write(room(lab, out=(f"{client}:{OUT}",)))
    relay.signal(signal.SIGHUP)
    relay.expect("needs a restart")
    relay.wait_log("needs a restart")
    relay.stop()

    relay = make_relay(lab, room(lab, out=(f"{client}:{OUT}",)))
    receiver = Socket(lab, client, OUT)
    good = packets(2)
    publisher.send(good[:1], (server, IN))
    for data in (b"", b"\x80", bytes(11), b"\x80\x60" + bytes(9), b"\x40" + bytes(20), b"\xbf\x60" + bytes(30), b"\x90\x60" + bytes(10), os.urandom(11)):
        publisher.socket.sendto(data, (server, IN))
    publisher.socket.sendto(good[0].build(), (server, IN + 1))
    publisher.socket.sendto(Packet(5, bytes(1490)).build(), (server, IN))
    relay.wait_metric("relay_dropped_malformed_total", 8)
    relay.wait_metric("relay_dropped_too_long_total", 1)
    # RTCP: of a stranger, and cut short.
    Socket(lab, client, 9000).socket.sendto(pli(0x1000), (server, IN + 1))
    for data in (b"\x80\xc8", b"\x80\xc8\x00\x06" + bytes(8), b"\x9f\xc9\xff\xff" + bytes(64), rtcp(205, 1, bytes(4))):
        publisher.socket.sendto(data, (server, IN + 1))
    relay.wait_metric("relay_dropped_rtcp_malformed_total", 2)
    # More SSRCs than a publisher may have.
    for ssrc in range(40):
        publisher.send(packets(1, ssrc=0x3000 + ssrc), (server, IN))
    relay.wait_metric("relay_dropped_ssrc_total", 40 - 15)
    publisher.send(good[1:], (server, IN))
    assert good[1] in receiver.take(1 + 15 + 1)


def test_rtcp_of_strangers_changes_nothing(make_lab, make_relay) -> None:
    lab = make_lab()
    client, server = lab.client["ipv4"], lab.server["ipv4"]
    # An address of the client that neither publishes nor receives.
    lab.run("client", "ip", "address", "add", "198.18.0.77/32", "dev", "lo")
    lab.run("server", "ip", "route", "add", "198.18.0.77/32", "via", client)
    relay = make_relay(lab, room(lab, out=(f"{client}:{OUT}",)))
    publisher, stranger = Socket(lab, client, 5000), Socket(lab, "198.18.0.77", 5001)
    publisher.send(packets(2), (server, IN))
    stranger.socket.sendto(pli(0x1000) + rtcp(203, 1, struct.pack("!I", 0x1000)), (server, IN + 1))
    relay.wait_metric("relay_dropped_rtcp_stranger_total", 1)
    metrics = relay.metrics()
    assert (metrics.sum("relay_publishing"), metrics.sum("relay_keyframes_wanted_total")) == (1, 0)


def test_receivers_change_while_packets_flow(make_lab, make_relay) -> None:
    lab = make_lab()
    client, server = lab.client["ipv4"], lab.server["ipv4"]
    first, second = f"{client}:{OUT}", f"{client}:7004"
    relay = make_relay(lab, room(lab, out=(first,)))
    stays, comes, publisher = Socket(lab, client, OUT), Socket(lab, client, 7004), Socket(lab, client, 5000)
    publisher.send(packets(5), (server, IN))
    stays.take(5)
    relay.write(room(lab, out=(second, first)))
    relay.signal(signal.SIGHUP)
    relay.wait_log("reloaded")
    publisher.send(packets(5, first=5), (server, IN))
    assert [packet.sequence for packet in stays.take(5)] == [5, 6, 7, 8, 9]
    assert [packet.sequence for packet in comes.take(5)] == [5, 6, 7, 8, 9]
    relay.wait_metric("relay_receiver_packets_total", 10, receiver=first)
    relay.write(room(lab, out=(second,)))
    relay.signal(signal.SIGHUP)
    relay.wait_log("reloaded", 2)
    publisher.send(packets(5, first=10), (server, IN))
    comes.take(5)
    assert stays.receive(0.1) is None
    relay.signal(signal.SIGUSR1)
    deadline = time.monotonic() + LIMIT
    while len(relay.lines()) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    (shown,) = relay.lines()[1]["rooms"]
    assert [receiver["address"] for receiver in shown["receivers"]] == [second]


def test_receivers_that_nobody_listens_at_hold_nobody_up(make_lab, make_relay) -> None:
    lab = make_lab()
    client, server = lab.client["ipv4"], lab.server["ipv4"]
    # Ports without a socket (ICMP errors), an address without a host, a network without a route.
    gone = (f"{client}:9", "198.18.0.200:9", "203.0.113.9:9")
    relay = make_relay(lab, room(lab, out=(*gone, f"{client}:{OUT}")))
    receiver, publisher = Socket(lab, client, OUT), Socket(lab, client, 5000)
    sent = packets(500)
    publisher.send(sent, (server, IN), pause=0.01)
    assert receiver.take(500) == sent
    relay.wait_metric("relay_packets_total", 500)


def test_without_privileges_by_an_agent(make_lab, make_relay, start_agent, tmp_path: Path) -> None:
    lab = make_lab()
    client, server = lab.client["ipv4"], lab.server["ipv4"]
    agent = start_agent(lab, f"""name = "media"
users = [{NOBODY}]
listen = ["{server}:{IN}", "{server}:{IN + 1}"]
interfaces = ["server0"]""")
    open_to_all(tmp_path)
    relay = make_relay(lab, room(lab, out=(f"{client}:{OUT}",)), "--agent", agent.socket, prefix=UNPRIVILEGED)
    receiver, publisher = Socket(lab, client, OUT), Socket(lab, client, 5000)
    sent = packets(20)
    publisher.send(sent, (server, IN))
    assert receiver.take(20) == sent
    assert relay.lines()[0]["ready"]["io"] in ("copy", "hybrid")


def test_wrong_files_are_refused_with_their_line(make_lab, tmp_path: Path) -> None:
    file = tmp_path / "relay.toml"
    for text, words in (
        ('[[room]]\nname = "a"\n', "rtp_in"),
        ('[[room]]\nname = "a"\nrtp_in = "192.0.2.1:5004"\nrtp_outs = []\n', "relay.toml:4"),
        ('[[room]]\nname = "a"\nrtp_in = "192.0.2.1:5004"\nhistory = 3\n', "relay.toml:4"),
    ):
        file.write_text(text)
        result = subprocess.run([BINARY, "relay", "--config", file, "--check"], capture_output=True, text=True, check=False)
        assert result.returncode == 2 and words in result.stderr, result.stderr
        assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    file.write_text('[[room]]\nname = "a"\nrtp_in = "192.0.2.1:5004"\n')
    assert run([BINARY, "relay", "--config", file, "--check"]).strip() == f"{file}: ok"


def test_killed_it_leaves_nothing_and_starts_again(make_lab, make_relay) -> None:
    lab = make_lab()
    client, server = lab.client["ipv4"], lab.server["ipv4"]
    receiver, publisher = Socket(lab, client, OUT), Socket(lab, client, 5000)
    for number in range(2):
        relay = make_relay(lab, room(lab, out=(f"{client}:{OUT}",)), "--io", "copy")
        publisher.send(packets(5, first=10 * number), (server, IN))
        receiver.take(5)
        relay.kill()
        deadline = time.monotonic() + LIMIT
        while relay.left():
            assert time.monotonic() < deadline, relay.left()
            time.sleep(0.05)
