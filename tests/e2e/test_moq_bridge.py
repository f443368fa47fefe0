"""What comes into a room as RTP or WebRTC is a broadcast of Media over QUIC: ffmpeg and aiortc send, moq-rs plays."""

import select
import socket
import subprocess
import time
from fractions import Fraction
from pathlib import Path

import av
import pytest
from av.bitstream import BitStreamFilterContext
from harness.lab import Lab
from harness.moq import gauge, keys, make_peer, url
from harness.moq import room as moq_room
from harness.namespace import give_room, udp_socket
from harness.paths import BINARY, CLIP, LIMIT, run
from harness.rtp import Packet, is_rtcp
from harness.webrtc import HTTP, MEDIA
from harness.webrtc import Peer as WebRtcPeer

# Fixtures.
__all__ = ["keys", "make_peer"]
IN, PATH = 5004, "studio.hang"
TYPES = {"h264": 102, "vp8": 96, "opus": 111}
ENCODERS = {
    "h264": ["-c:v", "libx264", "-preset", "ultrafast", "-tune", "zerolatency", "-bf", "2"],
    "vp8": ["-c:v", "libvpx", "-deadline", "realtime", "-cpu-used", "8", "-auto-alt-ref", "0", "-b:v", "800k"],
}


def room(lab: Lab, keys: Path, *more: str, head: str = "", webrtc: bool = False) -> str:
    """A room whose RTP, or WebRTC, is published."""
    host = lab.server["ipv4"]
    text = moq_room(lab, keys, head=head)
    source = ["whip = true"] if webrtc else [f'rtp_in = "{host}:{IN}"']
    if webrtc:
        section = f'[webrtc]\nlisten = ["{host}:{MEDIA}"]\nhttp = "{host}:{HTTP}"\n'
        text = text.replace("[[room]]", f"{section}[[room]]")
    return text + "\n".join([f'moq_broadcast = "{PATH}"', *source, *more, ""])


def units(frame: bytes) -> list[bytes]:
    """The NAL units of an access unit."""
    return [unit.rstrip(b"\0") for unit in frame.replace(b"\0\0\0\1", b"\0\0\1").split(b"\0\0\1") if unit]


class Source:
    """A few seconds of a clip, encoded by ffmpeg: its frames as ffmpeg has them, and the datagrams that it sends of them."""

    def __init__(self, lab: Lab, folder: Path, codec: str, seconds: float = 3) -> None:
        self.codec, self.file = codec, folder / "source.mkv"
        run(["ffmpeg", "-nostdin", "-v", "error", "-i", CLIP, "-t", str(seconds), "-vf", "scale=320:-2", *ENCODERS[codec],
             "-g", "15", "-keyint_min", "15", "-c:a", "libopus", "-ac", "2", self.file])
        self.video, self.audio = self._frames("video"), self._frames("audio")
        self.datagrams = self._record(lab)

    def _frames(self, kind: str) -> list[tuple[Fraction, bool, list[bytes]]]:
        """Times, whether it is a key frame, and units."""
        with av.open(str(self.file)) as file:
            stream = next(one for one in file.streams if one.type == kind)
            is_avc = self.codec == "h264" and kind == "video"
            filtered = BitStreamFilterContext("h264_mp4toannexb", stream) if is_avc else None
            found = []
            for packet in file.demux(stream):
                for one in filtered.filter(packet if packet.size else None) if filtered else [packet]:
                    if one.size:
                        data = bytes(one)
                        found.append((one.pts * one.time_base, one.is_keyframe, units(data) if is_avc else [data]))
            return found

    def _record(self, lab: Lab) -> list[tuple[float, bytes]]:
        """Datagrams of both streams with the time of each. ffmpeg sends each from a port of its own; a room's publisher has one."""
        host = lab.client["ipv4"]
        sockets = []
        for port in range(7000, 7004):
            sockets.append(udp_socket(lab.client_namespace, socket.AF_INET, None))
            give_room(sockets[-1])
            sockets[-1].bind((host, port))
        annex_b = ["-bsf:v", "h264_mp4toannexb"] if self.codec == "h264" else []
        words = ["ffmpeg", "-nostdin", "-v", "error", "-re", "-i", self.file]
        words += ["-map", "0:v", "-c", "copy", *annex_b, "-payload_type", str(TYPES[self.codec]), "-f", "rtp", f"rtp://{host}:7000"]
        words += ["-map", "0:a", "-c", "copy", "-payload_type", str(TYPES["opus"]), "-f", "rtp", f"rtp://{host}:7002"]
        found, begun = [], time.monotonic()
        with subprocess.Popen(lab.inside("client", *words), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
            while process.poll() is None or select.select(sockets, [], [], 0.2)[0]:
                # Reports first, which ffmpeg sends before the frames that they are for.
                for ready in select.select([*sockets[1::2], *sockets[::2]], [], [], 0.05)[0]:
                    found.append((time.monotonic() - begun, ready.recv(65536)))
                assert time.monotonic() - begun < LIMIT
            assert process.returncode == 0, process.stderr.read()
        for one in sockets:
            one.close()
        return found

    def send(self, lab: Lab, datagrams: list[tuple[float, bytes]] | None = None) -> None:
        """Sends them in their time, all from one host, without goodbyes."""
        server = lab.server["ipv4"]
        rtp, rtcp = (udp_socket(lab.client_namespace, socket.AF_INET, None) for _ in range(2))
        rtp.bind((lab.client["ipv4"], 9000))
        rtcp.bind((lab.client["ipv4"], 9001))
        datagrams = self.datagrams if datagrams is None else datagrams
        begun = time.monotonic() - datagrams[0][0]
        for at, datagram in datagrams:
            time.sleep(max(0.0, begun + at - time.monotonic()))
            if not is_rtcp(datagram):
                rtp.sendto(datagram, (server, IN))
            elif datagram[1] == 200:
                # A report alone: what follows it may be a goodbye.
                rtcp.sendto(datagram[:28], (server, IN + 1))
        rtp.close()
        rtcp.close()


def is_video(datagram: bytes) -> bool:
    """It is a packet of H.264."""
    return not is_rtcp(datagram) and datagram[1] & 0x7F == TYPES["h264"]


def follows_in_frame(former: bytes, datagram: bytes) -> bool:
    """The second is the next of the same frame."""
    one, other = Packet.read(former), Packet.read(datagram)
    return one.timestamp == other.timestamp and (one.sequence + 1) % 65536 == other.sequence


def times(frames: list[tuple[Fraction, bool, list[bytes]]]) -> list[int]:
    """Times since the first, in microseconds."""
    return [round((at - frames[0][0]) * 1_000_000) for at, _, _ in frames]


def follows(events: list[dict], frames: list[tuple[Fraction, bool, list[bytes]]], split, rate: int) -> int:
    """Each frame that came is ffmpeg's, none is missing behind the first, and times are its too; the index of the first."""
    got = [split(bytes.fromhex(event["frame"])) for event in events]
    wanted = [data for _, _, data in frames]
    first = wanted.index(got[0])
    assert got == wanted[first : first + len(got)]
    offsets = [event["time"] - at for event, at in zip(events, times(frames[first:]), strict=False)]
    # Matroska has milliseconds, and so has what ffmpeg makes of them on the clock of RTP.
    assert max(offsets) - min(offsets) <= 2_000_000 // rate + 2_000, offsets
    return first


@pytest.mark.parametrize(("mode", "codec"), [("copy", "h264"), ("udp", "vp8")])
def test_what_ffmpeg_sends_is_played_frame_by_frame(make_lab, make_relay, make_peer, keys, tmp_path: Path, mode: str, codec: str) -> None:
    lab = make_lab()
    source = Source(lab, tmp_path, codec)
    # The sessions of two workers, and the room on one of them.
    relay = make_relay(lab, room(lab, keys, head="workers = 2" if mode == "udp" else ""), "--io", mode)
    players = [make_peer(lab, "media", url(lab), PATH) for _ in range(3)]
    for player in players:
        player.event("connected")
    source.send(lab)
    for player in players:
        name = {"h264": "avc3.", "vp8": "vp8"}[codec]
        codecs = player.event("catalog")["codecs"]
        assert codecs["audio"] == "opus" and codecs["video"].startswith(name), codecs
        events = []
        for kind in ("video", "audio"):
            player.wait(lambda event, kind=kind: event == {"event": "end", "track": kind}, "the end of a track", 60)
            events.append([event for event in player.events if event.get("track") == kind])
        video, audio = events
        split = units if codec == "h264" else lambda frame: [frame]
        first = follows(video, source.video, split, 90_000)
        assert source.video[first][1] and video[0]["key"] and len(video) == len(source.video) - first > 30
        heard = follows(audio, source.audio, lambda frame: [frame], 48_000)
        assert len(audio) == len(source.audio) - heard > 50
        # Together as they are in the file. For ffmpeg's reports, the first frame's time is when it was decoded: with reordering, a few
        # frames earlier than it is seen.
        apart = (video[0]["time"] - audio[0]["time"]) / 1_000_000 - float(source.video[first][0] - source.audio[heard][0])
        assert abs(apart) < (0.15 if codec == "h264" else 0.05), apart
    metrics = relay.metrics()
    assert metrics.sum("relay_bridge_frames_total") == len(source.video) + len(source.audio)
    keys_sent = sum(is_key for _, is_key, _ in source.video)
    assert metrics.sum("relay_bridge_groups_total") == keys_sent + len(source.audio)
    assert metrics.sum("relay_bridge_frames_lost_total") == 0
    # Its publisher is silent, and the broadcast is over.
    gauge(relay, "relay_bridge_announced", 0)
    gauge(relay, "relay_moq_now_broadcasts", 0)
    (shown,) = relay.rooms()
    assert shown["moq_broadcast"]["path"] == PATH and shown["moq_broadcast"]["now"]["announced"] == 0


def test_lost_packets_leave_whole_groups(make_lab, make_relay, make_peer, keys, tmp_path: Path) -> None:
    lab = make_lab()
    source = Source(lab, tmp_path, "h264")
    relay = make_relay(lab, room(lab, keys, 'rtcp = "none"'), "--io", "udp")
    player = make_peer(lab, "media", url(lab), PATH, "--groups")
    player.event("connected")
    stamps: list[int] = []
    for _, datagram in source.datagrams:
        if is_video(datagram) and (stamp := Packet.read(datagram).timestamp) not in stamps:
            stamps.append(stamp)
    assert len(stamps) == len(source.video)
    begins = [number for number, (_, is_key, _) in enumerate(source.video) if is_key]
    assert len(begins) >= 4, begins
    # One packet each: in the middle of the second group, and of the third key frame; in the fourth group packets of a frame change places.
    broken = [begins[1] + 7, begins[2]]
    sent, dropped = [], set()
    for at, datagram in source.datagrams:
        number = stamps.index(Packet.read(datagram).timestamp) if is_video(datagram) else None
        if number in broken and number not in dropped:
            dropped.add(number)
        else:
            sent.append((at, datagram))
    swapped = 0
    for index in range(1, len(sent)):
        (_, former), (at, datagram) = sent[index - 1 : index + 1]
        if is_video(former) and is_video(datagram) and follows_in_frame(former, datagram):
            if begins[3] <= stamps.index(Packet.read(datagram).timestamp) < begins[3] + 8:
                # At once: what is missing is waited for 30 ms.
                sent[index - 1 : index + 1] = [(at, datagram), (at, former)]
                swapped += 1
    assert swapped >= 2, swapped
    # The player is there before the first group is over.
    second = next(
        at for at, (_, datagram) in enumerate(sent) if is_video(datagram) and Packet.read(datagram).timestamp == stamps[begins[1]]
    )
    source.send(lab, sent[:second])
    relay.wait_metric("relay_moq_subscriptions_total", 3)
    source.send(lab, sent[second:])
    player.wait(lambda event: event == {"event": "end", "track": "video"}, "the end of the pictures", 60)
    assert not [event for event in player.events if event["event"] == "cut"]
    groups = [event for event in player.events if event["event"] == "group" and event["track"] == "video"]
    got = [event["frames"] for event in sorted(groups, key=lambda event: event["group"])]
    runs = list(zip(begins, [*begins[1:], len(source.video)], strict=True))
    runs[1] = (begins[1], broken[0])
    del runs[2]

    def split(frame: str) -> list[bytes]:
        """Units behind a time of 1, 2, 4 or 8 octets."""
        data = bytes.fromhex(frame)
        return units(data[1 << (data[0] >> 6) :])

    wanted = [[data for _, _, data in source.video[begin:end]] for begin, end in runs]
    assert [[split(frame) for _, frame in group] for group in got] == wanted
    metrics = relay.metrics()
    lost = len(source.video) - sum(map(len, wanted))
    # A frame of one packet that is lost may be taken for the beginning of the next.
    assert lost - 1 <= metrics.sum("relay_bridge_frames_lost_total") <= lost
    assert metrics.sum("relay_bridge_keyframes_wanted_total") >= 2


def test_what_a_browser_publishes_is_played(make_lab, make_relay, make_peer, keys) -> None:
    lab = make_lab()
    relay = make_relay(lab, room(lab, keys, webrtc=True, head="workers = 2"), "--io", "udp")
    publisher = WebRtcPeer(lab, "publish", f"http://{lab.server['ipv4']}:{HTTP}/whip/studio", "--codec", "vp8", "--rate", "20")
    try:
        publisher.answer()
        publisher.connected()
        player = make_peer(lab, "media", url(lab), PATH, "--decode", "vp8")
        assert player.event("catalog")["codecs"] == {"video": "vp8"}
        numbers: list[int] = []
        while len(numbers) < 40:
            numbers += player.event("frame")["numbers"]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        assert relay.metrics().sum("relay_bridge_frames_lost_total") == 0
        publisher.end()
        player.event("end")
        gauge(relay, "relay_moq_now_broadcasts", 0)
    finally:
        publisher.finish()


def test_a_bridge_that_cannot_be_is_named_with_its_line(make_lab, keys, tmp_path: Path) -> None:
    lab = make_lab()
    whole = room(lab, keys)
    for change, words in (
        (("moq = true\n", ""), "set `moq = true`"),
        ((f'rtp_in = "{lab.server["ipv4"]}:{IN}"', ""), "set `rtp_in` or `whip`"),
        ((f'"{PATH}"', '"/cam/"'), "give a path"),
        ((f'"{PATH}"', f'"{PATH}"\npayload = "any"'), 'payload = "rtp"'),
    ):
        file = tmp_path / "relay.toml"
        file.write_text(whole.replace(*change))
        result = subprocess.run([BINARY, "relay", "--config", file, "--check"], capture_output=True, text=True, check=False)
        assert result.returncode == 2 and words in result.stderr and "moq_broadcast" in file.read_text(), result
        assert f"{file}:" in result.stderr
