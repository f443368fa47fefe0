// What each of two peers on a page, `moq` and `player`, can do with @moq/net: `connect`, `publish`, `write` and `subscribe`; what has come is
// in `seen`.
import * as Moq from "@moq/net";

const TRACK = "video";
const MICROSECONDS = 1_000_000;
const octets = text => Uint8Array.from(atob(text), letter => letter.charCodeAt(0));
const hex = buffer => Array.from(new Uint8Array(buffer), byte => byte.toString(16).padStart(2, "0")).join("");

function peer() {
  const page = { seen: [], told: [] };
  let connection, track;

  /** A session at the URL, whose certificate has that hash. What it speaks. */
  page.connect = async (url, hash) => {
    const webtransport = { serverCertificateHashes: [{ value: hash }] };
    connection = await Moq.Connection.connect(new URL(url), { webtransport, websocket: { enabled: false } });
    connection.closed.then(() => page.told.push("closed"), error => page.told.push(String(error)));
    return connection.version;
  };

  /** Announces a broadcast with one track. */
  page.publish = path => {
    const broadcast = new Moq.Broadcast.Producer();
    track = broadcast.createTrack(TRACK, { timescale: MICROSECONDS });
    connection.publish(Moq.Path.from(path), broadcast);
  };

  /** Whether somebody has subscribed to it. */
  page.isUsed = () => track.used.peek();

  /** Writes a group of objects, each its octets in Base64 and its time in microseconds. */
  page.write = objects => {
    const group = track.appendGroup();
    for (const [payload, time] of objects) {
      group.writeFrame({ payload: octets(payload), timestamp: Moq.Time.Timestamp.fromMicros(time) });
    }
    group.close();
    return group.sequence;
  };

  /** Collects the groups of a track, each with the SHA-256 of its objects. */
  page.subscribe = async path => {
    const subscriber = connection.consume(Moq.Path.from(path)).track(TRACK).subscribe({ priority: 0 });
    for (let group; (group = await subscriber.recvGroup()); ) {
      const objects = [];
      for (let frame; (frame = await group.readFrame()); ) {
        objects.push(hex(await crypto.subtle.digest("SHA-256", frame.payload)));
      }
      page.seen.push({ group: group.sequence, objects });
    }
  };

  /** Says goodbye. */
  page.close = () => connection.close();

  return page;
}

globalThis.moq = peer();
globalThis.player = peer();
