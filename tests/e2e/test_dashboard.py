"""The dashboard in headless Chromium: it asks for the token, draws what the process tells, and runs nothing but its own script."""

import base64
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import clients
from harness.browser import Browser
from harness.lab import Lab
from harness.paths import BINARY
from harness.server import address

TOKEN = "0123456789abcdef0123456789abcdef"
PORT = 9180
# Where pictures for the documentation go, if somebody wants them.
PICTURES = os.environ.get("EXPRESSWAY_DASHBOARD_PICTURES")


def text(browser: Browser, selector: str) -> str:
    """What is read there."""
    return browser.evaluate(f"document.querySelector({selector!r})?.innerText || ''")


def picture(browser: Browser, name: str) -> None:
    """A screenshot of the whole page, as a PNG."""
    shot = browser.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
    data = base64.b64decode(shot["data"])
    assert data.startswith(b"\x89PNG")
    if PICTURES:
        (Path(PICTURES) / name).write_bytes(data)


@pytest.fixture
def open_page(certificates: Path, tmp_path: Path):
    """Opens pages of an admin listener; what went wrong in them fails the test."""
    browsers: list[Browser] = []

    def open_(lab: Lab, path: str = "/dashboard") -> Browser:
        folder = tmp_path / f"browser-{len(browsers)}"
        folder.mkdir()
        browser = Browser(lab, folder, lab.server["ipv4"], certificates, force_quic=False)
        browsers.append(browser)
        browser.call("Log.enable")
        browser.call("Emulation.setDeviceMetricsOverride", width=1200, height=800, deviceScaleFactor=1, mobile=False)
        browser.call("Page.navigate", url=f"http://{lab.server['ipv4']}:{PORT}{path}")
        browser.wait_until("!!document.getElementById('tables')")
        return browser

    yield open_
    for browser in browsers:
        events = browser.events
        browser.close()
        thrown = [event for event in events if event.get("method") == "Runtime.exceptionThrown"]
        assert not thrown, thrown
        entries = [event["params"]["entry"] for event in events if event.get("method") == "Log.entryAdded"]
        wrong = [entry for entry in entries if "Content Security Policy" in entry["text"] or entry["source"] == "javascript"]
        assert not wrong, wrong


@pytest.mark.parametrize("mode", ["copy", "udp"])
def test_it_asks_for_the_token_and_draws_a_gateway(
    make_lab, make_server, open_page: Callable[..., Browser], certificates: Path, tmp_path: Path, mode: str
) -> None:
    lab = make_lab()
    file = tmp_path / "tokens"
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o600)
    host = lab.server["ipv4"]
    make_server(lab, mode=mode, more={"admin": {"listen": f'"{host}:{PORT}"', "token_file": f'"{file}"'}})
    browser = open_page(lab)
    browser.wait_until("!document.getElementById('ask').hidden")
    assert text(browser, "#health") == "locked" and text(browser, "#tiles") == ""
    enter = "document.getElementById('token').value = {}; document.querySelector('#ask button').click()"
    browser.evaluate(enter.format("'wrong-token-wrong-token'"))
    browser.wait_until("document.getElementById('problem').innerText.includes('not in token_file')")
    browser.evaluate(enter.format(f"'{TOKEN}'"))
    browser.wait_until("document.getElementById('health').innerText === 'serving'")
    assert browser.evaluate("document.getElementById('ask').hidden")
    assert text(browser, "#title") == "Expressway serve" and "version " in text(browser, "#about")
    # While somebody is served the figures move.
    browser.wait_until("[...document.querySelectorAll('article')].some((one) => one.innerText.startsWith('Requests'))")
    for _ in range(2):
        (answer,) = clients.fetch(lab, "quicgo", address(host), certificates, ["/clip.mp4"])
        assert answer.status == 200
    moved = "[...document.querySelectorAll('article')].some((one) => one.innerText.startsWith('Bytes over QUIC') && /[1-9]/.test(one.innerText))"
    browser.wait_until(moved)
    upgrades = "[...document.querySelectorAll('article')].find((one) => one.innerText.startsWith('Upgrades')).innerText"
    assert browser.evaluate(upgrades).split() == ["Upgrades", "generation", "1", "older", "processes", "0"]
    assert f"{host}:4433" in text(browser, "#tables") and mode in text(browser, "#tables")
    # Both themes, whatever the system's is.
    theme = "document.documentElement.dataset.theme"
    first = browser.evaluate(theme)
    paper = "getComputedStyle(document.body).backgroundColor"
    before = browser.evaluate(paper)
    picture(browser, f"dashboard-{first}.png")
    browser.evaluate("document.getElementById('theme').click()")
    assert {first, browser.evaluate(theme)} == {"dark", "light"} and browser.evaluate(paper) != before
    picture(browser, f"dashboard-{browser.evaluate(theme)}.png")


def test_what_names_say_is_text(make_lab, open_page: Callable[..., Browser], tmp_path: Path) -> None:
    """A room's name is whatever its operator wrote, and nothing of it runs."""
    lab = make_lab()
    host = lab.server["ipv4"]
    name = "<img src=x onerror=document.title='owned'>"
    config = tmp_path / "relay.toml"
    config.write_text(f'[admin]\nlisten = "{host}:{PORT}"\n[[room]]\nname = "{name}"\nrtp_in = "{host}:5004"\n')
    command = lab.inside("server", BINARY, "relay", "--config", config, "--io", "udp")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as relay:
        try:
            assert relay.stdout and relay.stdout.readline().startswith("ready ")
            browser = open_page(lab)
            browser.wait_until("document.getElementById('tables').innerText.includes('onerror')")
            assert name in text(browser, "#tables")
            assert browser.evaluate("document.querySelectorAll('img').length") == 0
            assert browser.evaluate("document.title") == "Expressway relay"
        finally:
            relay.terminate()


def test_the_page_may_load_nothing_from_elsewhere(make_lab, make_server, open_page: Callable[..., Browser]) -> None:
    lab = make_lab()
    host = lab.server["ipv4"]
    server = make_server(lab, mode="udp", more={"admin": {"listen": f'"{host}:{PORT}"'}})
    server.expect("whoever reaches the admin listener may ask and order")
    browser = open_page(lab)
    browser.wait_until("document.getElementById('health').innerText === 'serving'")
    urls = {
        event["params"]["request"]["url"]
        for event in browser.events if event.get("method") == "Network.requestWillBeSent"
    }
    base = f"http://{host}:{PORT}/"
    assert urls and all(url.startswith((base, "data:,")) for url in urls), urls
    answer = browser.evaluate("fetch('/dashboard').then((answer) => answer.headers.get('content-security-policy'))")
    assert "script-src 'self'" in answer and "frame-ancestors 'none'" in answer and "unsafe" not in answer
