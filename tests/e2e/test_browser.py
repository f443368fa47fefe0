"""A real browser plays a real video over HTTP/3, and seeks in it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.browser import Browser
from harness.lab import Lab
from harness.paths import HOST, LONG_CLIP, PORT


@pytest.fixture
def open_browser(tmp_path: Path, certificates: Path) -> Iterator[Callable[[Lab], Browser]]:
    """Opens browsers that end with the test."""
    browsers: list[Browser] = []

    def open_one(lab: Lab) -> Browser:
        folder = tmp_path / f"browser-{len(browsers)}"
        folder.mkdir()
        browsers.append(Browser(lab, folder, lab.server["ipv4"], certificates))
        return browsers[-1]

    yield open_one
    for browser in browsers:
        browser.close()


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
