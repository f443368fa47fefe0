"""SRTP on the RTP legs of `expressway relay`: libsrtp and FFmpeg seal and open, and what nobody sealed changes nothing."""

import base64
import os
import subprocess
import time
from pathlib import Path

import pytest
from harness.lab import Lab
from harness.paths import CLIP, LIMIT
from harness.rtp import MediaRelay, Packet, Socket, is_rtcp, packets, receiver_report, split
from pylibsrtp import Error, Policy, Session

CM, GCM = "AES_CM_128_HMAC_SHA1_80", "AEAD_AES_128_GCM"
PROFILES = {CM: (Policy.SRTP_PROFILE_AES128_CM_SHA1_80, 30), GCM: (Policy.SRTP_PROFILE_AEAD_AES_128_GCM, 28)}


class Sealed:
    """Both directions under a key of libsrtp."""

    def __init__(self, profile: str) -> None:
        number, length = PROFILES[profile]
        self.material = os.urandom(length)
        self.text = base64.b64encode(self.material).decode()

        def session(direction: int) -> Session:
            policy = Policy(key=self.material, ssrc_type=direction, srtp_profile=number)
            policy.window_size, policy.allow_repeat_tx = 1024, True
            return Session(policy=policy)

        self.out, self.into = session(Policy.SSRC_ANY_OUTBOUND), session(Policy.SSRC_ANY_INBOUND)


def room(lab: Lab, srtp: str, *outs: str) -> str:
    """A room whose publisher seals, with receivers."""
    lines = ["[[room]]", 'name = "studio"', f'rtp_in = "{lab.server["ipv4"]}:5004"', f"srtp = {srtp}", *outs, ""]
    return "\n".join(lines)


def out(lab: Lab, port: int, more: str = "") -> str:
    """A receiver."""
    return f'[[room.out]]\naddress = "{lab.client["ipv4"]}:{port}"\n{more}'


def take(receiver: Socket, count: int) -> list[bytes]:
    """That many packets of RTP, as they came."""
    taken: list[bytes] = []
    while len(taken) < count:
        data = receiver.receive()
        assert data is not None, f"{len(taken)} of {count} came"
        if not is_rtcp(data):
            taken.append(data)
    return taken


@pytest.mark.parametrize(("mode", "profile"), [("copy", CM), ("udp", GCM)])
def test_libsrtp_publishes_and_receives(make_lab, make_relay, tmp_path: Path, mode: str, profile: str) -> None:
    lab = make_lab()
    publisher_key, receiver_key = Sealed(profile), Sealed(GCM if profile == CM else CM)
    file = tmp_path / "receiver.key"
    file.write_text(receiver_key.text + "\n")
    other = GCM if profile == CM else CM
    outs = (
        out(lab, 6004, f'srtp = {{ profile = "{other}", key_file = "{file}" }}\nssrc = 77'),
        out(lab, 7004),
    )
    relay: MediaRelay = make_relay(lab, room(lab, f'{{ profile = "{profile}", key = "{publisher_key.text}" }}', *outs), "--io", mode)
    client, there = lab.client["ipv4"], (lab.server["ipv4"], 5004)
    publisher, reports = Socket(lab, client, 5000), Socket(lab, client, 5001)
    sealed, plain, control = Socket(lab, client, 6004), Socket(lab, client, 7004), Socket(lab, client, 6005)
    # Numbers wrap on the way: both sides count that for themselves.
    sent = packets(200, first=65_436)
    for number, packet in enumerate(sent):
        publisher.socket.sendto(publisher_key.out.protect(packet.build()), there)
        if number % 32 == 31:
            time.sleep(0.005)
    came = take(sealed, 200)
    for socket, found in ((sealed, [Packet.read(receiver_key.into.unprotect(data)) for data in came]), (plain, plain.take(200))):
        assert [packet.payload for packet in found] == [packet.payload for packet in sent], socket
        assert [packet.sequence for packet in found] == [packet.sequence & 0xFFFF for packet in sent]
    # What the relay tells the publisher is sealed, and what a receiver asks for comes again as it was.
    data = reports.receive()
    assert data is not None and 201 in [kind for _, kind, _ in split(publisher_key.into.unprotect_rtcp(data))]
    nack = receiver_report(7) + b"\x81\xcd\x00\x03" + (7).to_bytes(4) + (77).to_bytes(4) + (50).to_bytes(2) + bytes(2)
    control.socket.sendto(receiver_key.out.protect_rtcp(nack), (lab.server["ipv4"], 5005))
    relay.wait_metric("relay_receiver_repairs_total", 1)
    data = sealed.receive()
    # It is the same packet, which has come.
    assert data is not None and data in came
    with pytest.raises(Error):
        receiver_key.into.unprotect(data)
    assert publisher_key.text not in relay.page("/config")
    for socket in (publisher, reports, sealed, plain, control):
        socket.socket.close()


def test_what_was_not_sealed_with_the_key_is_dropped(make_lab, make_relay) -> None:
    lab = make_lab()
    key, wrong = Sealed(CM), Sealed(CM)
    relay = make_relay(lab, room(lab, f'{{ key = "{key.text}" }}', out(lab, 7004)), "--io", "udp")
    client, there = lab.client["ipv4"], (lab.server["ipv4"], 5004)
    publisher, receiver = Socket(lab, client, 5000), Socket(lab, client, 7004)
    stranger = Socket(lab, client, 5002)
    # The stranger comes first, and has nothing of it.
    for packet in packets(5):
        stranger.socket.sendto(packet.build(), there)
        stranger.socket.sendto(wrong.out.protect(packet.build()), there)
    stranger.socket.sendto(b"\x80", there)
    relay.wait_metric("relay_dropped_srtp_total", 11)
    assert relay.metrics().sum("relay_publishing") == 0
    sent = packets(10, first=100)
    sealed = [key.out.protect(packet.build()) for packet in sent]
    for data in (*sealed, *sealed, bytes([*sealed[0][:-1], sealed[0][-1] ^ 1])):
        publisher.socket.sendto(data, there)
    assert [packet.payload for packet in receiver.take(10)] == [packet.payload for packet in sent]
    relay.wait_metric("relay_dropped_replay_total", 11)
    assert receiver.receive(0.2) is None, "nothing came twice"
    metrics = relay.metrics()
    assert (metrics.sum("relay_dropped_srtp_total"), metrics.sum("relay_packets_total")) == (11, 10)
    for socket in (publisher, receiver, stranger):
        socket.socket.close()


def test_ffmpeg_publishes_and_receives(make_lab, make_relay, tmp_path: Path) -> None:
    lab = make_lab()
    host, client, key, other = lab.server["ipv4"], lab.client["ipv4"], Sealed(CM), Sealed(CM)
    make_relay(lab, room(lab, f'{{ key = "{key.text}" }}', out(lab, 6004, f'srtp = {{ key = "{other.text}" }}')), "--io", "udp")
    described = tmp_path / "out.sdp"
    described.write_text(
        f"v=0\no=- 0 0 IN IP4 {client}\ns=-\nc=IN IP4 {client}\nt=0 0\nm=video 6004 RTP/SAVP 96\na=rtpmap:96 H264/90000\n"
        f"a=fmtp:96 packetization-mode=1\na=crypto:1 {CM} inline:{other.text}\n"
    )
    read = ["ffmpeg", "-nostdin", "-v", "error", "-protocol_whitelist", "file,udp,rtp,srtp", "-i", described, "-frames:v", "5", "-f",
            "framemd5", "-"]
    send = ["ffmpeg", "-nostdin", "-v", "error", "-re", "-stream_loop", "-1", "-i", CLIP, "-an", "-vf", "scale=160:128", "-r", "10", "-c:v",
            "libx264", "-preset", "ultrafast", "-tune", "zerolatency", "-profile:v", "baseline", "-g", "10", "-bf", "0", "-bsf:v",
            "dump_extra", "-srtp_out_suite", CM, "-srtp_out_params", key.text, "-f", "rtp", "-payload_type", "96",
            f"srtp://{host}:5004?pkt_size=1200"]
    reader = subprocess.Popen(lab.inside("client", *read), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    writer = subprocess.Popen(lab.inside("client", *send))
    try:
        found, errors = reader.communicate(timeout=LIMIT)
        assert len([line for line in found.splitlines() if not line.startswith("#")]) == 5, errors
    finally:
        for process in (reader, writer):
            process.kill()
            process.wait(LIMIT)
