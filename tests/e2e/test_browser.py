"""Browsers: one plays a video over HTTP/3 and seeks in it, as a file and with hls.js; pages begin over TCP and go on with
HTTP/3."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from harness import origins
from harness.browser import Browser
from harness.firefox import Firefox
from harness.paths import CLIP, HOST, LONG_CLIP, PEERS, PORT, run


def plays_from(browser: Browser, second: float) -> None:
    """Whether the picture moves on from there."""
    browser.wait_until(f"!video.seeking && video.currentTime > {second} + 0.5")


def range_start(response: dict[str, Any]) -> int:
    """The first byte of a partial response."""
    headers = {name.lower(): value for name, value in response["headers"].items()}
    unit, span = headers["content-range"].split()
    assert unit == "bytes"
    return int(span.split("-")[0])


@pytest.mark.parametrize("mode", ["copy", "hybrid", "udp"])
def test_chromium_plays_and_seeks(make_lab, make_server, open_browser, mode: str) -> None:
    lab = make_lab()
    server = make_server(lab, mode=mode)
    browser = open_browser(lab)
    browser.call("Page.navigate", url=f"https://{HOST}:{PORT}/player.html")
    browser.wait_until("document.readyState == 'complete' && !!document.getElementById('video')")
    browser.wait_until("video.readyState >= HTMLMediaElement.HAVE_FUTURE_DATA")
    assert browser.evaluate("video.videoWidth") > 0
    duration = browser.evaluate("video.duration")
    assert duration > 100
    browser.evaluate("video.play().then(() => true)")
    plays_from(browser, 0)
    # Forth beyond what is buffered, and back again.
    for share in (0.9, 0.5, 0.1):
        target = duration * share
        browser.evaluate(f"video.currentTime = {target}")
        plays_from(browser, target)
    assert browser.evaluate("video.error === null")
    frames = browser.evaluate("video.getVideoPlaybackQuality().totalVideoFrames")
    assert frames > 10

    page, *_ = browser.responses("/player.html")
    assert (page["protocol"], page["status"]) == ("h3", 200)
    media = browser.responses("/long.mp4")
    assert {response["protocol"] for response in media} == {"h3"}
    assert {response["status"] for response in media} == {206}
    starts = {range_start(response) for response in media}
    size = LONG_CLIP.stat().st_size
    assert any(start > size // 2 for start in starts), f"no range from the second half: {starts}"
    server.wait_for("the requests counted", lambda m: m.sum("requests_total") >= len(media) + 1)
    way = "kernel" if mode == "udp" else "xsk"
    server.wait_for(f"packets by {way}", lambda m: m.sum(f"rx_{way}_packets_total") > 0)


# Fetches one thing after another until one came over HTTP/3, and tells the server what each of them came over.
WALK = """<!doctype html>
<title>walk</title>
<script>
const timing = performance.getEntriesByType("navigation");
async function fetched(path) {
  await (await fetch(path, { cache: "no-store" })).text();
  const url = new URL(path, location).href;
  for (;;) {
    const [entry] = performance.getEntriesByName(url, "resource");
    if (entry) {
      performance.clearResourceTimings();
      return entry.nextHopProtocol;
    }
    await new Promise(soon => setTimeout(soon, 1));
  }
}
async function walk() {
  const seen = [timing[0].nextHopProtocol];
  while (seen.at(-1) != "h3") {
    seen.push(await fetched(`/small.txt?${seen.length}`));
  }
  for (let more = 0; more < 5; more++) {
    seen.push(await fetched(`/small.txt?${seen.length}`));
  }
  await fetch(`/done?${seen}`);
}
addEventListener("load", () => walk().catch(error => fetch(`/failed?${error}`)));
</script>
"""


@pytest.mark.parametrize("name", ["chromium", "firefox"])
def test_a_page_begins_over_tcp_and_goes_on_with_http3(
    make_lab, make_server, open_browser, certificates: Path, tmp_path: Path, name: str
) -> None:
    root, log = tmp_path / "root", tmp_path / "access.log"
    root.mkdir()
    (root / "walk.html").write_text(WALK)
    (root / "small.txt").write_text("A small file.\n")
    lab = make_lab()
    server = make_server(lab, root=root, more={"log": {"access": f'"{log}"'}})
    url = f"https://{HOST}:{PORT}/walk.html"
    if name == "firefox":
        browser = Firefox(lab, tmp_path, lab.server["ipv4"], certificates, url)
        try:
            browser.wait_until_told(log, "/done?")
        finally:
            browser.close()
    else:
        browser = open_browser(lab, force_quic=False)
        browser.call("Page.navigate", url=url)
        browser.wait_until("performance.getEntriesByType('resource').some(entry => entry.name.includes('/done?'))")
    server.stop()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    (done,) = [line["target"] for line in lines if line["target"].startswith("/done?")]
    seen = done.removeprefix("/done?").split(",")
    turn = seen.index("h3")
    assert turn > 0 and set(seen[:turn]) == {"h2"} and set(seen[turn:]) == {"h3"}, seen
    logged = {line["target"]: line["protocol"] for line in lines}
    names = {"h2": "HTTP/2.0", "h3": "HTTP/3.0"}
    assert logged["/walk.html"] == "HTTP/2.0"
    assert [logged[f"/small.txt?{n}"] for n in range(1, len(seen))] == [names[protocol] for protocol in seen[1:]]


HLS = """<!doctype html>
<title>hls</title>
<video id="video" muted></video>
<script src="/hls.min.js"></script>
<script>
const errors = [];
const hls = new Hls({ maxBufferLength: 8, backBufferLength: 0 });
// A machine that is too busy to play is no error of the server's.
const isOurs = data => data.fatal || data.type == Hls.ErrorTypes.NETWORK_ERROR;
hls.on(Hls.Events.ERROR, (_, data) => { if (isOurs(data)) errors.push(`${data.type} ${data.details} ${data.error}`); });
hls.loadSource("/hls/stream.m3u8");
hls.attachMedia(document.getElementById("video"));
</script>
"""

MEDIA = """
server {{
  listen 127.0.0.1:8001; root {root}; access_log {log}; add_header cache-control "max-age=600"; etag on;
  types {{ text/html html; text/javascript js; application/vnd.apple.mpegurl m3u8; video/mp4 mp4 m4s; video/mp2t ts; }}
}}
"""


@pytest.mark.parametrize("segments", ["fmp4", "mpegts"])
def test_hls_js_plays_and_seeks_from_a_cached_origin(
    make_lab, make_server, open_browser, tmp_path: Path, segments: str
) -> None:
    root, asked, log = tmp_path / "root", tmp_path / "asked.log", tmp_path / "access.log"
    (root / "hls").mkdir(parents=True)
    (root / "player.html").write_text(HLS)
    shutil.copy(PEERS / "hls.min.js", root)
    # Small pictures, which cost little to show, again and again.
    ffmpeg, small = ["ffmpeg", "-nostdin", "-v", "error"], tmp_path / "small.mp4"
    run([*ffmpeg, "-i", CLIP, "-vf", "scale=320:180", "-preset", "ultrafast", "-g", "50", "-c:a", "copy", small])
    command = [*ffmpeg, "-stream_loop", "39", "-i", small, "-c", "copy", "-f", "hls", "-hls_time", "4"]
    run([*command, "-hls_playlist_type", "vod", "-hls_segment_type", segments, root / "hls/stream.m3u8"])
    lab = make_lab()
    nginx = origins.nginx(lab, tmp_path / "nginx", 8001, MEDIA.format(root=root, log=asked))
    try:
        site = 'origin = "http://127.0.0.1:8001"\ncache = true\n'
        server = make_server(lab, root=None, site=site, more={"log": {"access": f'"{log}"'}})
        browser = open_browser(lab)
        # The second time the server has all of it.
        for _ in range(2):
            browser.call("Network.clearBrowserCache")
            browser.call("Page.navigate", url=f"https://{HOST}:{PORT}/player.html")
            browser.wait_until("document.readyState == 'complete' && !!document.getElementById('video')")
            browser.evaluate("video.play().then(() => true)")
            plays_from(browser, 0)
            assert browser.evaluate("video.videoWidth") > 0
            duration = browser.evaluate("video.duration")
            assert duration > 100
            for share in (0.8, 0.4, 0.1):
                browser.evaluate(f"video.currentTime = {duration * share}")
                plays_from(browser, duration * share)
            assert browser.evaluate("video.error === null") and browser.evaluate("errors") == []
        filled = server.metrics().sum("cache_fill_bytes_total")
        server.stop()
    finally:
        nginx.kill()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    pieces = [line for line in lines if line["target"].startswith("/hls/") and line["complete"]]
    assert {line["protocol"] for line in lines} == {"HTTP/3.0"}
    assert {line["status"] for line in pieces} <= {200, 206}
    kinds = {line["target"].rpartition(".")[2] for line in pieces}
    assert kinds == ({"m3u8", "mp4", "m4s"} if segments == "fmp4" else {"m3u8", "ts"})
    fetched = {line.split()[6].lstrip("/") for line in asked.read_text().splitlines()}
    sizes = [(root / name).stat().st_size for name in fetched if (root / name).exists()]
    assert 0 < filled <= sum(sizes), "none of it is fetched twice"
    assert sum(line["cache"] == "hit" for line in pieces) >= len(pieces) // 3, [line["cache"] for line in pieces]
