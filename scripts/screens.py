#!/usr/bin/env python3
"""Pictures of `expressway top -i` for the documentation: docs/images/top-*.svg.

    scripts/screens.py [BINARY]

The emulated guest (tests/guest, bed `screens`) runs it under tmux, on devices in zero-copy mode with traffic of its own, where everything can
be traced; here is drawn what its terminal shows. Needs tmux (`scripts/setup test`).
"""

import html
import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
COLUMNS, ROWS = 132, 28
# Pixels of a character cell.
WIDTH, HEIGHT = 8.4, 18
PALETTE = ["#1e1e1e", "#e06c75", "#7fbf6a", "#e5c07b", "#61afef", "#c678dd", "#56b6c2", "#d4d4d4",
           "#7f848e", "#ff7b86", "#98e07f", "#ffd68a", "#7fc4ff", "#e0a3ff", "#7fe0ec", "#ffffff"]
FOREGROUND, BACKGROUND = PALETTE[7], PALETTE[0]
SGR = re.compile(r"\x1b\[([0-9;]*)m")


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
    made = 0
    command = [sys.executable, ROOT / "tests/guest", "--binary", binary, "screens"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as guest:
        assert guest.stdout
        for line in guest.stdout:
            # The firmware's last word may stand before it.
            said, is_picture, document = line.partition('screen {"name": ')
            if not is_picture:
                print(said, end="", flush=True)
                continue
            picture = json.loads('{"name": ' + document)
            name = IMAGES / f"top-{picture['name']}.svg"
            name.write_text(svg(picture["screen"]))
            made += 1
            print(name.relative_to(ROOT), flush=True)
    return guest.returncode or int(not made)


if __name__ == "__main__":
    sys.exit(main())
