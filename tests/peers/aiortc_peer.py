#!/usr/bin/env python3
"""WebRTC by aiortc: publishes by WHIP, or plays by WHEP, numbered pictures and data, and tells line by line what happens.

Each picture carries its number as 16 fields, black or white, that survive any codec. Lines on standard output are JSON; commands on
standard input are lines too: `send TEXT` (on the data channel), `end` (DELETE and goodbye).
"""

import argparse
import asyncio
import fractions
import json
import sys
import urllib.error
import urllib.request

import av
from aiortc import RTCConfiguration, RTCPeerConnection, RTCSessionDescription, VideoStreamTrack
from aiortc.rtcrtpsender import RTCRtpSender

WIDTH, HEIGHT, ACROSS = 160, 128, 4


def tell(**event) -> None:
    """One line."""
    print(json.dumps(event), flush=True)


def picture(number: int) -> av.VideoFrame:
    """A picture with that number."""
    frame = av.VideoFrame(WIDTH, HEIGHT, "yuv420p")
    plane = frame.planes[0]
    rows = bytearray(plane.buffer_size)
    wide, high = WIDTH // ACROSS, HEIGHT // ACROSS
    for row in range(HEIGHT):
        for column in range(ACROSS):
            is_white = number >> (row // high * ACROSS + column) & 1
            start = row * plane.line_size + column * wide
            rows[start : start + wide] = (b"\xe0" if is_white else b"\x20") * wide
    plane.update(bytes(rows))
    for other in frame.planes[1:]:
        other.update(b"\x80" * other.buffer_size)
    return frame


def number_of(frame: av.VideoFrame) -> int:
    """The number of a picture."""
    if frame.format.name != "yuv420p":
        frame = frame.reformat(format="yuv420p")
    plane = frame.planes[0]
    octets = bytes(plane)
    wide, high = frame.width // ACROSS, frame.height // ACROSS
    number = 0
    for field in range(ACROSS * ACROSS):
        row, column = (field // ACROSS) * high + high // 2, (field % ACROSS) * wide + wide // 2
        number |= (octets[row * plane.line_size + column] > 0x80) << field
    return number


class Numbers(VideoStreamTrack):
    """Pictures that count."""

    def __init__(self, rate: int) -> None:
        super().__init__()
        self.rate, self.number, self.begun = rate, 0, None

    async def recv(self) -> av.VideoFrame:
        """The next picture, when it is due."""
        loop = asyncio.get_running_loop()
        if self.begun is None:
            self.begun = loop.time()
        await asyncio.sleep(max(0.0, self.begun + self.number / self.rate - loop.time()))
        frame = picture(self.number & 0xFFFF)
        frame.pts, frame.time_base = self.number * 90000 // self.rate, fractions.Fraction(1, 90000)
        self.number += 1
        return frame


def ask(method: str, url: str, token: str, body: str | None = None) -> tuple[int, dict[str, str], str]:
    """A request, and what came of it."""
    headers = {"Content-Type": "application/sdp"} if body is not None else {}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    request = urllib.request.Request(url, body.encode() if body is not None else None, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, {name.lower(): value for name, value in answer.headers.items()}, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, {name.lower(): value for name, value in error.headers.items()}, error.read().decode()


async def show(track, most: int) -> None:
    """Tells the pictures of a track by number."""
    shown = 0
    while True:
        try:
            frame = await track.recv()
        except Exception as error:  # the track has ended
            tell(event="ended", why=type(error).__name__)
            return
        shown += 1
        if shown <= most:
            tell(event="picture", number=number_of(frame))


def hear(channel) -> None:
    """Tells the messages of a channel."""

    @channel.on("message")
    def came(message) -> None:
        text = message if isinstance(message, str) else message.hex()
        tell(event="message", label=channel.label, text=text, binary=not isinstance(message, str))


async def commands():
    """The lines of standard input."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        yield line.decode().strip()


async def main() -> None:
    """One session."""
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=["publish", "play"])
    parser.add_argument("url")
    parser.add_argument("--token", default="")
    parser.add_argument("--codec", default="")
    parser.add_argument("--rate", type=int, default=10)
    parser.add_argument("--data", default="", help="LABEL of a data channel")
    parser.add_argument("--unordered", action="store_true")
    parser.add_argument("--retransmits", type=int, default=None)
    given = parser.parse_args()
    connection = RTCPeerConnection(RTCConfiguration(iceServers=[]))
    tasks = []

    @connection.on("connectionstatechange")
    def changed() -> None:
        tell(event="state", state=connection.connectionState)

    @connection.on("track")
    def added(track) -> None:
        if track.kind == "video":
            tasks.append(asyncio.ensure_future(show(track, 1 << 20)))

    @connection.on("datachannel")
    def offered(channel) -> None:
        tell(event="given", label=channel.label, ordered=channel.ordered, retransmits=channel.maxRetransmits)
        hear(channel)

    if given.role == "publish":
        transceiver = connection.addTransceiver(Numbers(given.rate), direction="sendonly")
    else:
        transceiver = connection.addTransceiver("video", direction="recvonly")
    if given.codec:
        every = RTCRtpSender.getCapabilities("video").codecs
        transceiver.setCodecPreferences([codec for codec in every if codec.mimeType.lower() == f"video/{given.codec}"])
    channel = None
    if given.data:
        channel = connection.createDataChannel(given.data, ordered=not given.unordered, maxRetransmits=given.retransmits)

        @channel.on("open")
        def opened() -> None:
            tell(event="open", label=channel.label)

        hear(channel)

    await connection.setLocalDescription(await connection.createOffer())
    offer = connection.localDescription.sdp
    status, headers, body = await asyncio.to_thread(ask, "POST", given.url, given.token, offer)
    tell(event="answer", status=status, location=headers.get("location", ""), body=body)
    if status != 201:
        await connection.close()
        return
    await connection.setRemoteDescription(RTCSessionDescription(body, "answer"))
    place = "/".join(given.url.split("/")[:3]) + headers["location"]
    async for line in commands():
        word, _, rest = line.partition(" ")
        if word == "send":
            channel.send(rest)
        elif word == "end":
            status, _, _ = await asyncio.to_thread(ask, "DELETE", place, given.token)
            tell(event="deleted", status=status)
            break
    await connection.close()


if __name__ == "__main__":
    asyncio.run(main())
