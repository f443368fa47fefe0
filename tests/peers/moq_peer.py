#!/usr/bin/env python3
"""Media over QUIC by moq-rs (moq-net): publishes a track, subscribes to one, fetches a group, or follows the media that a catalog
names, and tells line by line what happens.

Each object says which it is and is filled up with octets that follow from that, so that a subscriber knows each octet that is to come.
Lines on standard output are JSON; commands on standard input are lines too: `groups N`, `finish`, `unannounce`, `announce`,
`large OCTETS` (one object, in a group), `end`.
"""

import argparse
import asyncio
import hashlib
import json
import sys

import av
import moq

TRACK = "video"


def tell(**event) -> None:
    """One line."""
    print(json.dumps(event), flush=True)


def reason(error: moq.Error) -> str:
    """What an error says, with its code and kind if it came by the protocol."""
    return str(getattr(error, "details", error))


def content(group: int, number: int, size: int) -> bytes:
    """The octets of an object."""
    head = b"%d/%d/%d " % (group, number, size)
    return (head + hashlib.shake_128(head).digest(size))[:size]


def time_of(group: int, number: int) -> int:
    """The time of an object, in microseconds. No faster than that of the clock, or moq-rs takes groups under way for too old."""
    return group * 10_000 + number * 1000


async def commands() -> asyncio.StreamReader:
    """Standard input."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


def client(arguments: argparse.Namespace) -> moq.Client:
    """A connection without a second try."""
    options = {"reconnect": False, "websocket_enabled": False}
    if arguments.ca:
        return moq.Client(arguments.url, tls_roots=[arguments.ca], tls_system_roots=False, **options)
    return moq.Client(arguments.url, tls_verify=False, **options)


async def publish(arguments: argparse.Namespace) -> None:
    """Announces a broadcast with one track, and writes groups when told."""
    async with client(arguments) as session:
        broadcast = session.create_broadcast(arguments.broadcast)
        track = broadcast.publish_track(TRACK)
        broadcast.announce()
        tell(event="announced")
        lines = await commands()
        while line := (await lines.readline()).decode().split():
            match line:
                case ["groups", count]:
                    for _ in range(int(count)):
                        group = track.append_group()
                        for number in range(arguments.objects):
                            payload = content(group.sequence, number, arguments.size)
                            group.write_frame(payload, time_of(group.sequence, number))
                        group.finish()
                        tell(event="written", group=group.sequence)
                        await asyncio.sleep(arguments.interval)
                case ["large", size]:
                    group = track.append_group()
                    group.write_frame(content(group.sequence, 0, int(size)), 0)
                    group.finish()
                    tell(event="written", group=group.sequence)
                case ["finish"]:
                    track.finish()
                case ["unannounce"]:
                    broadcast.unannounce()
                case ["announce"]:
                    broadcast.announce()
                case ["used"]:
                    await track.used()
                    tell(event="used")
                case ["unused"]:
                    await track.unused()
                    tell(event="unused")
                case ["end"]:
                    break


async def check(group, size: int) -> int:
    """Reads a group to its end: how many objects it had, each as it was made."""
    number = 0
    async for frame in group:
        wanted = content(group.sequence, number, size or len(frame.payload))
        if frame.payload != wanted or (size and frame.timestamp_us != time_of(group.sequence, number)):
            tell(event="wrong", group=group.sequence, number=number, length=len(frame.payload), time=frame.timestamp_us)
        number += 1
    return number


async def subscribe(arguments: argparse.Namespace) -> None:
    """Waits for the broadcast, and tells which groups come."""
    async with client(arguments) as session:
        tell(event="connected")
        broadcast = await session.announced_broadcast(arguments.broadcast)
        tell(event="found")
        wishes = moq.Subscription(max_age_us=arguments.max_age * 1000, group_start=arguments.start, priority=arguments.priority)
        try:
            track = await broadcast.subscribe_track(TRACK, wishes)
            tell(event="subscribed", timescale=track.info().timescale)
            # As they arrive: next_group() passes over one that a task of moq-rs hears of after a newer one.
            while (group := await track.recv_group()) is not None:
                try:
                    tell(event="group", group=group.sequence, objects=await check(group, arguments.size))
                except moq.Error as error:
                    tell(event="cut", group=group.sequence, why=reason(error))
            tell(event="complete")
        except moq.Error as error:
            tell(event="over", why=reason(error))


async def fetch(arguments: argparse.Namespace) -> None:
    """Asks for one group."""
    async with client(arguments) as session:
        broadcast = await session.announced_broadcast(arguments.broadcast)
        try:
            group = await broadcast.fetch_group(TRACK, arguments.start)
            tell(event="group", group=group.sequence, objects=await check(group, arguments.size))
        except moq.Error as error:
            tell(event="over", why=reason(error))


async def watch(arguments: argparse.Namespace) -> None:
    """Tells which broadcasts come and go."""
    async with client(arguments) as session:
        tell(event="connected")
        async for announced in session.announced(arguments.broadcast):
            tell(event="broadcast", path=announced.prefix, active=announced.active)


async def follow(broadcast, name: str, rendition, decoder) -> None:
    """Tells the frames of a media track, and what is to be seen on them if there is a decoder."""
    wishes = moq.Subscription(max_age_us=30_000_000)
    async for frame in await broadcast.subscribe_media(name, rendition, wishes):
        event = {"track": name, "time": frame.timestamp_us, "key": frame.keyframe, "frame": frame.payload.hex()}
        if decoder:
            from aiortc_peer import number_of

            event["numbers"] = [number_of(picture) for picture in decoder.decode(av.Packet(frame.payload))]
        tell(event="frame", **event)
    tell(event="end", track=name)


async def groups(broadcast, name: str) -> None:
    """Tells the groups of a media track as they are, each with its frames."""
    track = await broadcast.subscribe_track(name, moq.Subscription(max_age_us=30_000_000))
    while (group := await track.recv_group()) is not None:
        try:
            frames = [(frame.timestamp_us, frame.payload.hex()) async for frame in group]
            tell(event="group", track=name, group=group.sequence, frames=frames)
        except moq.Error as error:
            tell(event="cut", track=name, group=group.sequence, why=reason(error))
    tell(event="end", track=name)


async def media(arguments: argparse.Namespace) -> None:
    """Follows all tracks that the first catalog names."""
    async with client(arguments) as session:
        tell(event="connected")
        broadcast = await session.announced_broadcast(arguments.broadcast)
        catalog = await broadcast.catalog()
        found = {**catalog.video, **catalog.audio}
        tell(event="catalog", codecs={name: rendition.codec for name, rendition in found.items()})
        if arguments.groups:
            await asyncio.gather(*(groups(broadcast, name) for name in found))
            return
        decoders = {name: av.CodecContext.create(arguments.decode, "r") for name in catalog.video if arguments.decode}
        await asyncio.gather(*(follow(broadcast, name, rendition, decoders.get(name)) for name, rendition in found.items()))


async def play(arguments: argparse.Namespace) -> None:
    """A role, until that is over or standard input is; then it says goodbye."""
    role = {"publish": publish, "subscribe": subscribe, "fetch": fetch, "watch": watch, "media": media}[arguments.role]
    tasks = [asyncio.ensure_future(role(arguments))]
    if arguments.role != "publish":
        lines = await commands()
        tasks.append(asyncio.ensure_future(lines.read()))
    _, others = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in others:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, moq.Error):
            tell(event="failed", why=reason(result))
    # What closes the connection is on its way.
    await asyncio.sleep(0.1)


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=["publish", "subscribe", "fetch", "watch", "media"])
    parser.add_argument("url")
    parser.add_argument("broadcast", nargs="?", default="")
    parser.add_argument("--ca")
    parser.add_argument("--objects", type=int, default=10)
    parser.add_argument("--size", type=int, default=1000)
    parser.add_argument("--interval", type=float, default=0)
    parser.add_argument("--max-age", type=int, default=30_000)
    parser.add_argument("--start", type=int)
    parser.add_argument("--priority", type=int, default=0)
    parser.add_argument("--groups", action="store_true", help="media: tells groups, not frames")
    parser.add_argument("--decode", default="", help="media: a decoder for pictures with numbers")
    arguments = parser.parse_args()
    asyncio.run(play(arguments))


if __name__ == "__main__":
    main()
