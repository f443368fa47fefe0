"""Chromium as a WebRTC peer: it publishes a canvas in layers by WHIP, and plays by WHEP."""

from typing import Any

from .browser import Browser

# What a page can do. `send` asks over HTTP, `publish` and `play` make a connection, `restart` begins its ICE anew.
SCRIPT = """
window.peers = {};
async function send(method, url, body, type, more) {
  const headers = {...(type ? {"Content-Type": type} : {}), ...(more || {})};
  const answer = await fetch(url, {method, body, headers});
  return {status: answer.status, text: await answer.text(), location: answer.headers.get("location"), etag: answer.headers.get("etag"),
          link: answer.headers.get("link")};
}
async function connect(name, url, connection) {
  await connection.setLocalDescription(await connection.createOffer());
  const answer = await send("POST", url, connection.localDescription.sdp, "application/sdp");
  if (answer.status != 201) throw new Error(answer.status + " " + answer.text);
  await connection.setRemoteDescription({type: "answer", sdp: answer.text});
  peers[name] = {connection, url: new URL(answer.location, url).href, etag: answer.etag, link: answer.link, sdp: answer.text};
  return answer;
}
async function publish(name, url, layers) {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [640, 360];
  const context = canvas.getContext("2d");
  let number = 0;
  setInterval(() => {
    number += 1;
    for (let stripe = 0; stripe < 16; stripe++) {
      context.fillStyle = `hsl(${number * 7 + stripe * 40}, 80%, 50%)`;
      context.fillRect(stripe * 40, (number * (stripe + 3)) % 360, 40, 90);
    }
  }, 66);
  const connection = new RTCPeerConnection();
  const track = canvas.captureStream(15).getVideoTracks()[0];
  const transceiver = connection.addTransceiver(track, {direction: "sendonly", sendEncodings: layers});
  const codecs = RTCRtpSender.getCapabilities("video").codecs;
  transceiver.setCodecPreferences(codecs.filter(codec => ["video/VP8", "video/rtx"].includes(codec.mimeType)));
  return connect(name, url, connection);
}
async function play(name, url) {
  const connection = new RTCPeerConnection();
  connection.addTransceiver("video", {direction: "recvonly"});
  const video = document.createElement("video");
  [video.muted, video.autoplay] = [true, true];
  document.documentElement.append(video);
  connection.ontrack = event => { video.srcObject = new MediaStream([event.track]); };
  return connect(name, url, connection);
}
async function inbound(name) {
  for (const report of (await peers[name].connection.getStats()).values()) {
    if (report.type == "inbound-rtp" && report.kind == "video") return report;
  }
  return {};
}
async function port(name) {
  const reports = await peers[name].connection.getStats();
  for (const report of reports.values()) {
    if (report.type == "transport" && report.selectedCandidatePairId) {
      return reports.get(reports.get(report.selectedCandidatePairId).localCandidateId).port;
    }
  }
}
async function restart(name) {
  const peer = peers[name];
  const offer = await peer.connection.createOffer({iceRestart: true});
  await peer.connection.setLocalDescription(offer);
  const keep = /^(a=ice-ufrag|a=ice-pwd|a=mid|m=)/;
  const fragment = offer.sdp.split("\\r\\n").filter(line => keep.test(line)).join("\\r\\n") + "\\r\\n";
  const answer = await send("PATCH", peer.url, fragment, "application/trickle-ice-sdpfrag", {"If-Match": "*"});
  if (answer.status != 200) throw new Error(answer.status + " " + answer.text);
  const take = prefix => answer.text.split("\\r\\n").find(line => line.startsWith(prefix));
  let sdp = peer.sdp.replace(/a=ice-ufrag:.*/g, take("a=ice-ufrag:")).replace(/a=ice-pwd:.*/g, take("a=ice-pwd:"));
  await peer.connection.setRemoteDescription({type: "answer", sdp});
  [peer.sdp, peer.etag] = [sdp, answer.etag];
  return answer;
}
true
"""


class Page:
    """A page of Chromium with any number of peers, by name."""

    def __init__(self, browser: Browser) -> None:
        self.browser = browser
        browser.evaluate(SCRIPT)

    def publish(self, name: str, url: str, *layers: dict[str, Any]) -> dict[str, Any]:
        """Publishes, in layers with these encodings."""
        return self.browser.evaluate(f"publish({name!r}, {url!r}, {list(layers)!r})")

    def play(self, name: str, url: str) -> dict[str, Any]:
        """Plays."""
        return self.browser.evaluate(f"play({name!r}, {url!r})")

    def inbound(self, name: str) -> dict[str, Any]:
        """What a peer that plays tells of its pictures."""
        return self.browser.evaluate(f"inbound({name!r})")

    def wait(self, name: str, what: str) -> None:
        """Waits until that is so of what a peer that plays tells, `it`."""
        self.browser.wait_until(f"inbound({name!r}).then(it => !!({what}))")

    def port(self, name: str) -> int:
        """The UDP port that a peer's media comes to."""
        return self.browser.evaluate(f"port({name!r})")

    def restart(self, name: str) -> dict[str, Any]:
        """Begins ICE of a peer anew."""
        return self.browser.evaluate(f"restart({name!r})")

    def send(self, name: str, method: str, path: str, body: str, kind: str, **fields: str) -> int:
        """A request about a peer's session, and its status."""
        script = f"send({method!r}, peers[{name!r}].url + {path!r}, {body!r}, {kind!r}, {fields!r}).then(it => it.status)"
        return self.browser.evaluate(script)

    def value(self, name: str, field: str) -> Any:
        """What a peer has of its session: `url`, `etag`, `link`."""
        return self.browser.evaluate(f"peers[{name!r}].{field}")
