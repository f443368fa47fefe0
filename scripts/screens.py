#!/usr/bin/env python3
"""Pictures of `expressway top -i` for the documentation: docs/images/top-*.svg.

    scripts/screens.py [BINARY]

Runs it under tmux in a lab with traffic of its own, and draws what the terminal shows. Needs root and tmux (`scripts/setup test`).
"""

import html
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
COLUMNS, ROWS = 132, 28
# Pixels of a character cell.
WIDTH, HEIGHT = 8.4, 18
LAB = f"screens-{os.getpid()}"
PALETTE = ["#1e1e1e", "#e06c75", "#7fbf6a", "#e5c07b", "#61afef", "#c678dd", "#56b6c2", "#d4d4d4",
           "#7f848e", "#ff7b86", "#98e07f", "#ffd68a", "#7fc4ff", "#e0a3ff", "#7fe0ec", "#ffffff"]
FOREGROUND, BACKGROUND = PALETTE[7], PALETTE[0]
SGR = re.compile(r"\x1b\[([0-9;]*)m")

# File, and the keys before its picture.
PICTURES = [("flows", ""), ("lines", "t"), ("hosts", "tv"), ("sockets", "vvv\t"), ("drops", "\t"), ("cpus", "\t"),
            ("keys", "\t\th")]


class Style:
    """What SGR sequences have set."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """As at the beginning."""
        self.fore, self.back, self.bold, self.reverse = FOREGROUND, BACKGROUND, False, False

    def apply(self, codes: str) -> None:
        """One sequence."""
        for code in map(int, filter(None, (codes or "0").split(";"))) if codes else [0]:
            match code:
                case 0:
                    self.reset()
                case 1:
                    self.bold = True
                case 7:
                    self.reverse = True
                case 27:
                    self.reverse = False
                case 39:
                    self.fore = FOREGROUND
                case 49:
                    self.back = BACKGROUND
                case _ if 30 <= code <= 37:
                    self.fore = PALETTE[code - 30]
                case _ if 40 <= code <= 47:
                    self.back = PALETTE[code - 40]
                case _ if 90 <= code <= 97:
                    self.fore = PALETTE[code - 82]

    def colours(self) -> tuple[str, str]:
        """Of a character and of what is behind it."""
        return (self.back, self.fore) if self.reverse else (self.fore, self.back)


def svg(screen: str) -> str:
    """A picture of what tmux captured."""
    width, height = COLUMNS * WIDTH + 16, ROWS * HEIGHT + 16
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" font-family="DejaVu Sans Mono, '
           f'Menlo, Consolas, monospace" font-size="14">',
           f'<rect width="100%" height="100%" rx="6" fill="{BACKGROUND}"/>']
    style = Style()
    for row, line in enumerate(screen.split("\n")[:ROWS]):
        column, top = 0, 8 + row * HEIGHT
        for index, part in enumerate(SGR.split(line)):
            if index % 2:
                style.apply(part)
                continue
            fore, back = style.colours()
            left, wide = 8 + column * WIDTH, len(part) * WIDTH
            if part and back != BACKGROUND:
                out.append(f'<rect x="{left:.1f}" y="{top}" width="{wide:.1f}" height="{HEIGHT}" fill="{back}"/>')
            if part.strip():
                weight = ' font-weight="bold"' if style.bold else ""
                out.append(f'<text x="{left:.1f}" y="{top + 14}" fill="{fore}"{weight} textLength="{wide:.1f}" '
                           f'xml:space="preserve">{html.escape(part)}</text>')
            column += len(part)
    return "\n".join([*out, "</svg>", ""])


def main() -> int:
    """Makes them all."""
    binary = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "target/release/expressway").resolve()
    IMAGES.mkdir(exist_ok=True)
    up = subprocess.run([binary, "lab", "up", LAB, "--json"], check=True, capture_output=True)
    (status,) = json.loads(up.stdout)
    host = next(one for one in status["namespaces"] if one["role"] == "server")["addresses"]["ipv4"]
    inside = lambda role: [str(binary), "lab", "exec", f"{LAB}/{role}", "--", str(binary)]
    running: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory() as folder:
        tmux = ["tmux", "-S", f"{folder}/tmux"]
        try:
            quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            running.append(subprocess.Popen([*inside("server"), "recv", "--listen", f"{host}:7000", "--io", "copy"], **quiet))
            time.sleep(2)
            for port, rate, size, flows in ((7000, "4k", "1200", "12"), (7000, "500", "200", "3"), (9, "50", "64", "2")):
                words = ["--to", f"{host}:{port}", "--rate", rate, "--size", size, "--flows", flows, "--seconds", "120",
                         "--source-port", str(50_000 + int(size))]
                running.append(subprocess.Popen([*inside("client"), "gen", "udp", *words], **quiet))
            command = " ".join([*inside("server"), "top", "-i", "server0"])
            subprocess.run([*tmux, "new-session", "-d", "-x", str(COLUMNS), "-y", str(ROWS), command], check=True)
            time.sleep(12)
            for name, keys in PICTURES:
                for key in keys:
                    subprocess.run([*tmux, "send-keys", "Tab" if key == "\t" else key], check=True)
                time.sleep(1.5)
                shown = subprocess.run([*tmux, "capture-pane", "-e", "-p"], check=True, capture_output=True, text=True)
                (IMAGES / f"top-{name}.svg").write_text(svg(shown.stdout))
                print(f"docs/images/top-{name}.svg")
        finally:
            subprocess.run([*tmux, "kill-server"], check=False, stderr=subprocess.DEVNULL)
            for process in running:
                process.terminate()
                process.wait()
            subprocess.run([binary, "lab", "down", LAB], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
