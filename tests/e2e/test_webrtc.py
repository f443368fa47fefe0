"""WebRTC in `expressway relay` over a veth: aiortc publishes and plays, ffmpeg on the RTP side of bridges, and strangers."""

import hashlib
import hmac
import re
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness.lab import Lab
from harness.paths import CLIP, HOST, LIMIT
from harness.rtp import MediaRelay, Packet, Socket
from harness.webrtc import HTTP, MEDIA, Peer, ask

KEY = "00112233445566778899aabbccddeeff"


@pytest.fixture
def make_peer() -> Iterator[Callable[..., Peer]]:
    """Starts peers; at the end none is left."""
    running: list[Peer] = []

    def make(*arguments: object) -> Peer:
        running.append(Peer(*arguments))
        return running[-1]

    yield make
    for peer in running:
        peer.finish()


def sessions(lab: Lab, *more: str, head: str = "", room: tuple[str, ...] = ()) -> str:
    """A room that sessions publish into and play from."""
    host = lab.server["ipv4"]
    webrtc = ["[webrtc]", f'listen = ["{host}:{MEDIA}"]', f'http = "{host}:{HTTP}"', *more]
    own = room or ("whip = true", "whep = true")
    return "\n".join([head, *webrtc, "[[room]]", 'name = "studio"', *own, ""])


def url(lab: Lab, path: str) -> str:
    """Where a session is asked for."""
    return f"http://{lab.server['ipv4']}:{HTTP}{path}"


def gauge(relay: MediaRelay, name: str, value: int) -> None:
    """Waits until a gauge has that value."""
    deadline = time.monotonic() + LIMIT
    while (found := relay.metrics().sum(name)) != value:
        assert time.monotonic() < deadline, f"{name} {found}, not {value}\n{relay.page('/metrics')}"
        time.sleep(0.05)


def rising(numbers: list[int]) -> bool:
    """Pictures in order, none of them twice."""
    return all(one < other for one, other in zip(numbers, numbers[1:], strict=False))


@pytest.mark.parametrize(("mode", "codec"), [("copy", "vp8"), ("udp", "h264")])
def test_one_publishes_and_others_play(make_lab, make_relay, make_peer, mode: str, codec: str) -> None:
    lab = make_lab()
    relay = make_relay(lab, sessions(lab), "--io", mode)
    assert relay.lines()[0]["ready"] == {"room": "studio", "rtp_in": None, "io": mode, "receivers": 0}
    early = make_peer(lab, "play", url(lab, "/whep/studio"), "--codec", codec)
    early.answer()
    early.connected()
    publisher = make_peer(lab, "publish", url(lab, "/whip/studio"), "--codec", codec)
    answer = publisher.answer()
    assert re.fullmatch(r"/whip/studio/[0-9a-f]{32}", answer["location"]), answer
    assert "a=ice-lite" in answer["body"] and "a=recvonly" in answer["body"], answer["body"]
    publisher.connected()
    late = make_peer(lab, "play", url(lab, "/whep/studio"), "--codec", codec)
    late.connected()
    for player in (early, late):
        numbers = player.pictures(20)
        assert rising(numbers), numbers
    relay.wait_metric("relay_webrtc_now_players", 2)
    early.end()
    gauge(relay, "relay_webrtc_now_players", 1)
    assert rising(late.pictures(5))
    publisher.end()
    gauge(relay, "relay_webrtc_now_publishers", 0)
    metrics = relay.metrics()
    assert metrics.sum("relay_webrtc_connected_total") == 3
    assert metrics.sum("relay_keyframes_asked_total") >= 1
    assert metrics.sum("relay_webrtc_ended_failed_total") == 0


def test_a_publisher_that_comes_back_goes_on_for_those_who_play(make_lab, make_relay, make_peer) -> None:
    lab = make_lab()
    room = ("whip = true", "whep = true", 'publisher_timeout = "1s"')
    relay = make_relay(lab, sessions(lab, room=room), "--io", "udp")
    first = make_peer(lab, "publish", url(lab, "/whip/studio")).connected()
    player = make_peer(lab, "play", url(lab, "/whep/studio")).connected()
    assert rising(player.pictures(5))
    assert ask(lab, "POST", url(lab, "/whip/studio"), b"v=0\r\n", {"Content-Type": "application/sdp"})[0] == 400
    second = make_peer(lab, "publish", url(lab, "/whip/studio"))
    second.answer(409)
    # It says nothing any more; another may publish a second later, though the first has not said goodbye.
    first.vanish()
    deadline = time.monotonic() + LIMIT
    while True:
        third = make_peer(lab, "publish", url(lab, "/whip/studio"))
        status = third.wait(lambda event: event["event"] == "answer")["status"]
        if status == 201:
            break
        assert status == 409 and time.monotonic() < deadline
    third.connected()
    # Its numbers begin again.
    while player.pictures(1)[0] > 3:
        pass
    assert rising(player.pictures(5))
    relay.wait_metric("relay_webrtc_ended_replaced_total", 1)
    relay.wait_metric("relay_http_refused_conflict_total", 1)


def test_a_player_that_vanishes_holds_nobody_up_and_goes(make_lab, make_relay, make_peer) -> None:
    lab = make_lab()
    relay = make_relay(lab, sessions(lab), "--io", "udp")
    make_peer(lab, "publish", url(lab, "/whip/studio")).connected()
    gone = make_peer(lab, "play", url(lab, "/whep/studio")).connected()
    stays = make_peer(lab, "play", url(lab, "/whep/studio")).connected()
    assert rising(gone.pictures(2)) and rising(stays.pictures(2))
    gone.vanish()
    relay.wait_metric("relay_webrtc_ended_lost_total", 1)
    gauge(relay, "relay_webrtc_now_players", 1)
    gauge(relay, "relay_sessions", 2)
    assert rising(stays.pictures(20))


def test_rtp_comes_out_as_webrtc_and_webrtc_as_rtp(make_lab, make_relay, make_peer, tmp_path: Path) -> None:
    lab = make_lab()
    host, client = lab.server["ipv4"], lab.client["ipv4"]
    bridged = ('codecs = { 96 = "h264" }', "whip = true", "whep = true", f'rtp_in = "{host}:5004"', f'rtp_out = ["{client}:6004"]')
    relay = make_relay(lab, sessions(lab, room=(*bridged, 'publisher_timeout = "1s"')), "--io", "udp")
    # RTP in, of ffmpeg.
    publish = ["ffmpeg", "-nostdin", "-v", "error", "-re", "-stream_loop", "-1", "-i", CLIP, "-an", "-vf", "scale=160:128", "-r", "10",
               "-c:v", "libx264", "-preset", "ultrafast", "-tune", "zerolatency", "-profile:v", "baseline", "-g", "10", "-bf", "0",
               "-bsf:v", "dump_extra", "-f", "rtp", "-payload_type", "96", f"rtp://{host}:5004?pkt_size=1200"]
    ffmpeg = subprocess.Popen(lab.inside("client", *publish))
    try:
        player = make_peer(lab, "play", url(lab, "/whep/studio"), "--codec", "h264").connected()
        player.pictures(10)
    finally:
        ffmpeg.kill()
        ffmpeg.wait(LIMIT)
    # WebRTC in; what comes out is RTP that ffmpeg decodes.
    deadline = time.monotonic() + LIMIT
    while True:
        publisher = make_peer(lab, "publish", url(lab, "/whip/studio"), "--codec", "h264")
        if publisher.wait(lambda event: event["event"] == "answer")["status"] == 201:
            break
        assert time.monotonic() < deadline
    publisher.connected()
    described = tmp_path / "out.sdp"
    described.write_text(
        f"v=0\no=- 0 0 IN IP4 {client}\ns=-\nc=IN IP4 {client}\nt=0 0\nm=video 6004 RTP/AVP 96\na=rtpmap:96 H264/90000\n"
        "a=fmtp:96 packetization-mode=1\n"
    )
    command = ["ffmpeg", "-nostdin", "-v", "error", "-protocol_whitelist", "file,udp,rtp", "-i", described, "-frames:v", "5", "-f",
               "framemd5", "-"]
    reader = subprocess.Popen(lab.inside("client", *command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        # It needs a key frame, for which a player asks.
        deadline = time.monotonic() + LIMIT
        while reader.poll() is None:
            assert time.monotonic() < deadline
            make_peer(lab, "play", url(lab, "/whep/studio"), "--codec", "h264").connected().pictures(1)
        out, errors = reader.communicate(timeout=LIMIT)
        assert len([line for line in out.splitlines() if not line.startswith("#")]) == 5, errors
    finally:
        reader.kill()
        reader.wait(LIMIT)


def test_losses_are_repaired_on_both_legs(make_lab, make_relay, make_peer) -> None:
    lab = make_lab()
    relay = make_relay(lab, sessions(lab), "--io", "udp")
    publisher = make_peer(lab, "publish", url(lab, "/whip/studio"), "--rate", "20").connected()
    player = make_peer(lab, "play", url(lab, "/whep/studio")).connected()
    player.pictures(5)
    # One in ten packets to and from the media port is lost, whatever it is.
    rule = ["-m", "statistic", "--mode", "nth", "--every", "10", "--packet", "0", "-j", "DROP"]
    for direction in (("INPUT", "--dport"), ("OUTPUT", "--sport")):
        lab.run("server", "iptables", "-A", direction[0], "-p", "udp", direction[1], str(MEDIA), *rule)
    numbers = player.pictures(100)
    assert rising(numbers), numbers
    dropped = lab.run("server", "iptables", "-nvxL")
    assert len(re.findall(r"^\s*[1-9]\d* .*DROP", dropped, re.MULTILINE)) == 2, dropped
    # Pictures that nothing repaired would be missing, and with them all up to the next key frame.
    missing = numbers[-1] - numbers[0] + 1 - len(numbers)
    assert missing <= 10, numbers
    publisher.end()
    player.end()
    relay.wait_metric("relay_webrtc_ended_failed_total", 0)


def token(path: str, key: str = KEY, lifetime: int = 600) -> str:
    """A token in the format of EdgeAuth 2.0."""
    fields = f"exp={int(time.time()) + lifetime}~acl={path}"
    return f"{fields}~hmac={hmac.new(bytes.fromhex(key), fields.encode(), hashlib.sha256).hexdigest()}"


def test_tokens_say_who_may_publish_and_who_may_play(make_lab, make_relay, make_peer, tmp_path: Path) -> None:
    lab = make_lab()
    keys = tmp_path / "token.keys"
    keys.write_text(f"{KEY}\n")
    relay = make_relay(lab, sessions(lab, f'token_keys = "{keys}"'), "--io", "udp")
    publish, play = url(lab, "/whip/studio"), url(lab, "/whep/studio")
    for wrong in ("", token("/whep/*"), token("/whip/*", key=KEY[::-1]), token("/whip/*", lifetime=-1), "x" * 3000):
        status, headers, body = ask(lab, "POST", publish, b"v=0\r\n", {"Content-Type": "application/sdp", "Authorization": f"Bearer {wrong}"})
        assert (status, headers["www-authenticate"]) == (401, "Bearer"), (wrong, status, body)
    make_peer(lab, "publish", publish, "--token", token("/whep/studio")).answer(401)
    publisher = make_peer(lab, "publish", publish, "--token", token("/whip/*"))
    location = publisher.answer()["location"]
    publisher.connected()
    player = make_peer(lab, "play", play, "--token", token("/whep/studio")).connected()
    assert rising(player.pictures(3))
    # Who knows the URL of a session needs a token still.
    assert ask(lab, "DELETE", url(lab, location))[0] == 401
    assert rising(player.pictures(3))
    other = KEY[::-1]
    keys.write_text(f"{other}\n")
    relay.signal(signal.SIGHUP)
    relay.wait_log("reloaded")
    make_peer(lab, "play", play, "--token", token("/whep/studio")).answer(401)
    make_peer(lab, "play", play, "--token", token("/whep/studio", key=other)).connected().pictures(1)
    relay.wait_metric("relay_http_refused_token_total", 7)


def test_what_is_no_whip_is_refused_in_words(make_lab, make_relay) -> None:
    lab = make_lab()
    relay = make_relay(lab, sessions(lab, room=("whip = true",)), "--io", "udp")
    there = url(lab, "/whip/studio")
    sdp = {"Content-Type": "application/sdp"}
    lines = "v=0\r\no=- 1 1 IN IP4 0.0.0.0\r\ns=-\r\nt=0 0\r\n"
    audio = "m=audio 9 UDP/TLS/RTP/SAVPF 111\r\nc=IN IP4 0.0.0.0\r\na=mid:0\r\na=sendonly\r\na=rtpmap:111 opus/48000/2\r\n"
    for method, path, body, headers, status, words in [
        ("GET", "/", None, {}, 404, "not found"),
        ("POST", "/whip/other", b"", sdp, 404, "no such room"),
        ("POST", "/whep/studio", b"", sdp, 404, "no such room"),
        ("GET", "/whip/studio", None, {}, 405, "not allowed"),
        ("PATCH", "/whip/studio", b"", {}, 405, "not allowed"),
        ("PATCH", "/whip/studio/" + "0" * 32, b"", {}, 404, "no such session"),
        ("POST", "/whep/studio/" + "0" * 32 + "/layer", b"{}", {}, 404, "no such session"),
        ("DELETE", "/whip/studio/" + "0" * 32, None, {}, 404, "no such session"),
        ("POST", "/whip/studio", b"{}", {"Content-Type": "application/json"}, 415, "application/sdp"),
        ("POST", "/whip/studio", b"x" * 70000, sdp, 413, "too long"),
        ("POST", "/whip/studio", b"", sdp, 400, "media sections"),
        ("POST", "/whip/studio", b"\xff\xfe", sdp, 400, "not valid SDP\n"),
        ("POST", "/whip/studio", b"hello\r\nm=\r\n", sdp, 400, "not valid SDP\n"),
        ("POST", "/whip/studio", (lines + audio * 4).encode(), sdp, 400, "media sections"),
        ("POST", "/whip/studio", (lines + audio).encode(), sdp, 400, "rejected"),
    ]:
        found, fields, text = ask(lab, method, url(lab, path), body, headers)
        assert found == status and words in text, (method, path, found, text)
        assert fields["access-control-allow-origin"] == "*" and fields["content-type"].startswith("text/plain"), fields
    status, fields, _ = ask(lab, "OPTIONS", there)
    assert (status, fields["accept-post"], fields["access-control-allow-methods"]) == (204, "application/sdp", "POST, OPTIONS")
    metrics = relay.metrics()
    assert metrics.sum("relay_http_refused_offer_total") >= 5 and metrics.sum("relay_http_refused_request_total") >= 6
    assert metrics.sum("relay_sessions") == 0


def binding_request(username: bytes) -> bytes:
    """A request of ICE for whoever has that username, by somebody who knows no password."""
    attributes = b""
    for kind, value in ((6, username), (0x24, bytes(4)), (0x8029, bytes(8)), (8, bytes(20))):
        attributes += struct.pack("!HH", kind, len(value)) + value + bytes(-len(value) % 4)
    return struct.pack("!HHI", 1, len(attributes), 0x2112A442) + bytes(12) + attributes


def test_a_flood_of_strangers_is_counted_and_changes_nothing(make_lab, make_relay, make_peer) -> None:
    lab = make_lab()
    relay = make_relay(lab, sessions(lab), "--io", "udp")
    publisher = make_peer(lab, "publish", url(lab, "/whip/studio"))
    fragment = re.search(r"a=ice-ufrag:(\S+)", publisher.answer()["body"])
    publisher.connected()
    player = make_peer(lab, "play", url(lab, "/whep/studio")).connected()
    player.pictures(3)
    stranger, there = Socket(lab, lab.client["ipv4"], 40000), (lab.server["ipv4"], MEDIA)
    for number in range(5000):
        stranger.socket.sendto(binding_request(b"%018x:x" % number), there)
        if number % 50 == 0:
            stranger.socket.sendto(Packet(number, b"media").build(), there)
            stranger.socket.sendto(bytes([22, 254, 253]) + bytes(60), there)
            stranger.socket.sendto(b"\xff" * 40, there)
            stranger.socket.sendto(binding_request(fragment[1].encode() + b":x"), there)
            time.sleep(0.002)
    relay.wait_metric("relay_demux_dropped_fragment_total", 4000)
    relay.wait_metric("relay_demux_dropped_stranger_total", 50)
    relay.wait_metric("relay_demux_dropped_unknown_total", 50)
    relay.wait_metric("relay_webrtc_dropped_password_total", 50)
    assert rising(player.pictures(10))
    # Nothing was answered: a stranger's address cannot be flooded by way of the relay.
    stranger.socket.settimeout(0.1)
    with pytest.raises(socket.timeout):
        stranger.socket.recv(2000)
    stranger.socket.close()


def test_sessions_that_never_come_expire_and_are_bounded(make_lab, make_relay, make_peer) -> None:
    lab = make_lab()
    relay = make_relay(lab, sessions(lab, "sessions = 2", 'handshake_timeout = "1s"'), "--io", "udp")
    first = make_peer(lab, "publish", url(lab, "/whip/studio"))
    offer = {"Content-Type": "application/sdp"}
    first.answer()
    first.vanish()
    body = sdp_offer()
    statuses = [ask(lab, "POST", url(lab, "/whep/studio"), body, offer)[0] for _ in range(3)]
    assert statuses[0] in (201, 503) and statuses[-1] == 503, statuses
    relay.wait_metric("relay_http_refused_full_total", statuses.count(503))
    relay.wait_metric("relay_webrtc_ended_handshake_total", 2)
    gauge(relay, "relay_sessions", 0)
    assert ask(lab, "POST", url(lab, "/whep/studio"), body, offer)[0] == 201


def test_sessions_of_an_address_and_of_a_room_have_limits(make_lab, make_relay) -> None:
    lab = make_lab()
    limits = ("sessions = 6", "publishers = 2", "sessions_per_address = 4", "publishers_per_address = 1")
    more = '\n[[room]]\nname = "other"\nwhip = true\nwhep = true\n'
    room = ("whip = true", "whep = true", "players = 1")
    relay = make_relay(lab, sessions(lab, *limits, room=room) + more, "--io", "udp", count=2)
    sdp = {"Content-Type": "application/sdp"}

    def offer(path: str, body: bytes) -> tuple[int, bool]:
        status, headers, _ = ask(lab, "POST", url(lab, path), body, sdp)
        return status, "retry-after" in headers

    publisher = sdp_offer().replace(b"recvonly", b"sendonly")
    assert offer("/whip/studio", publisher) == (201, False)
    assert offer("/whip/other", publisher) == (429, True)
    assert offer("/whep/studio", sdp_offer()) == (201, False)
    assert offer("/whep/studio", sdp_offer()) == (503, True)
    assert [offer("/whep/other", sdp_offer()) for _ in range(3)] == [(201, False), (201, False), (429, True)]
    # An offer that is refused leaves nothing behind.
    assert ask(lab, "POST", url(lab, "/whep/other"), b"v=0\r\n", sdp)[0] == 429
    metrics = relay.metrics()
    assert metrics.sum("relay_http_refused_address_total") == 3
    assert metrics.sum("relay_http_refused_room_total") == 1
    assert metrics.sum("relay_sessions") == 4


def sdp_offer() -> bytes:
    """What a player offers that is never heard from again."""
    lines = [
        "v=0", "o=- 1 1 IN IP4 0.0.0.0", "s=-", "t=0 0", "a=group:BUNDLE 0", "m=video 9 UDP/TLS/RTP/SAVPF 96", "c=IN IP4 0.0.0.0",
        "a=mid:0", "a=recvonly", "a=rtcp-mux", "a=ice-ufrag:abcd", "a=ice-pwd:0123456789012345678901", "a=setup:actpass",
        "a=fingerprint:sha-256 " + ":".join(["AB"] * 32), "a=rtpmap:96 VP8/90000", "a=rtcp-fb:96 nack pli",
    ]
    return ("\r\n".join(lines) + "\r\n").encode()


@pytest.mark.parametrize("mode", ["copy", "udp"])
def test_sessions_are_found_whichever_worker_their_datagrams_come_to(make_lab, make_relay, make_peer, mode: str) -> None:
    lab = make_lab()
    host = lab.server["ipv4"]
    more = '\n[[room]]\nname = "other"\nwhip = true\nwhep = true\n'
    relay = make_relay(lab, sessions(lab, head="workers = 2") + more, "--io", mode, count=2)
    players = []
    for room in ("studio", "other"):
        make_peer(lab, "publish", f"http://{host}:{HTTP}/whip/{room}").connected()
        players += [make_peer(lab, "play", f"http://{host}:{HTTP}/whep/{room}").connected() for _ in range(2)]
    for player in players:
        assert rising(player.pictures(10))
    relay.wait_metric("relay_webrtc_ended_failed_total", 0)


@pytest.mark.parametrize("flags", [(), ("--unordered", "--retransmits", "0")])
def test_messages_go_to_all_others_in_the_room(make_lab, make_relay, make_peer, flags: tuple[str, ...]) -> None:
    lab = make_lab()
    relay = make_relay(lab, sessions(lab, room=("whip = true", "whep = true", 'data = "all"')), "--io", "udp")
    first = make_peer(lab, "publish", url(lab, "/whip/studio"), "--data", "chat", *flags)
    peers = [first, *(make_peer(lab, "play", url(lab, "/whep/studio"), "--data", "chat", *flags) for _ in range(2))]
    for peer in peers:
        peer.wait(lambda event: event == {"event": "open", "label": "chat"}, "its channel was open")
    # One that has no such channel is given one, as lively as the first.
    other = make_peer(lab, "play", url(lab, "/whep/studio"), "--data", "other")
    given = other.wait(lambda event: event["event"] == "given", "it was given the channel")
    assert given == {"event": "given", "label": "chat", "ordered": not flags, "retransmits": 0 if flags else None}, given
    for number, speaker in enumerate(peers):
        text, others = f"from {number}", [peer for peer in peers if peer is not speaker]
        speaker.say(f"send {text}")
        for peer in others:
            assert peer.message() == {"event": "message", "label": "chat", "text": text, "binary": False}
        assert other.message()["text"] == text
    relay.wait_metric("relay_webrtc_messages_sent_total", 9)
    metrics = relay.metrics()
    assert (metrics.sum("relay_webrtc_messages_total"), metrics.sum("relay_webrtc_messages_sent_total")) == (3, 9)


def test_https_has_its_certificate(make_lab, make_relay, certificates: Path) -> None:
    lab = make_lab()
    more = (f'certificate = "{certificates}/cert.pem"', f'private_key = "{certificates}/key.pem"')
    make_relay(lab, sessions(lab, *more), "--io", "udp")
    command = ["curl", "-sS", "--cacert", certificates / "ca.pem", "--resolve", f"{HOST}:{HTTP}:{lab.server['ipv4']}", "-X", "OPTIONS",
               "-o", "/dev/null", "-w", "%{http_code}", f"https://{HOST}:{HTTP}/whip/studio"]
    assert lab.run("client", *command) == "204"
