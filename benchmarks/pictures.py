"""Makes the pictures of the documentation anew: `make pictures`. Plays the scripted night of `benchmarks/night.py` in a
recorded terminal, makes the page of that night with `ralph report`, and photographs it in a browser.

asciinema is installed by pip and svg-term-cli by npm, both into `.peers`. The browser is Chromium of the distribution
(`apt-get install chromium`), driven by playwright.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import Literal, NamedTuple

from playwright.sync_api import sync_playwright

from benchmarks.harness import PYTHON, ralph
from benchmarks.night import night_environment
from benchmarks.peers import FOLDER

TOP = Path(__file__).parents[1]
PICTURES = TOP / "docs" / "pictures"
ASCIINEMA, SVG_TERM = "2.4.0", "2.1.1"
COLUMNS, ROWS = 112, 34
_NAMESPACES = ("http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink")


class Shot(NamedTuple):
    """A picture of the page. Width and height are in pixels."""

    name: str
    width: int
    height: int
    scheme: Literal["light", "dark"]


_SHOTS = (
    Shot("report", 1200, 860, "light"),
    Shot("report-dark", 1200, 860, "dark"),
    Shot("report-phone", 390, 844, "light"),
)


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    directory = Path("/var/tmp/night")  # the pictures show it
    directory.mkdir()
    try:
        recording = _recorded_night(directory)
        _draw_terminal(recording)
        page = directory / "report.html"
        environment = night_environment(directory / "night")
        command = (*ralph("report"), "-o", str(page))
        subprocess.run(command, cwd=directory / "night" / "duration", env=environment, check=True)
        _photograph(page)
    finally:
        shutil.rmtree(directory)


def _recorded_night(directory: Path) -> Path:
    """Plays the night in a recorded terminal. Returns the file of the recording."""
    place = FOLDER / "asciinema"
    if not place.exists():
        venv.create(place, with_pip=True)
        subprocess.run([place / "bin" / "pip", "install", "-q", f"asciinema=={ASCIINEMA}"], check=True)
    recording = directory / "night.cast"
    command = f"{PYTHON} -m benchmarks.night {directory / 'night'}"
    size = ("--cols", str(COLUMNS), "--rows", str(ROWS))
    words = (place / "bin" / "asciinema", "rec", "-q", *size, "-c", command, recording)
    environment = {**os.environ, "TERM": "xterm-256color", "HOME": str(directory), "PYTHONPATH": str(TOP)}
    subprocess.run(words, env=environment, cwd=TOP, check=True)
    return recording


def _draw_terminal(recording: Path) -> None:
    """Turns the recording into `loop.svg`. Raises SystemExit if the picture names an address on the network."""
    program = FOLDER / "node_modules" / ".bin" / "svg-term"
    if not program.exists():
        npm = shutil.which("npm") or "npm"
        install = (npm, "install", "--no-audit", "--no-fund", "--prefix", FOLDER, f"svg-term-cli@{SVG_TERM}")
        subprocess.run(install, check=True, stdout=sys.stderr)
    picture = PICTURES / "loop.svg"
    words = (program, "--in", recording, "--out", picture, "--window", "--no-cursor", "--width", str(COLUMNS))
    subprocess.run(words, check=True)
    named = set(re.findall(r"https?://[^\"'\s<)]+", picture.read_text(encoding="utf-8")))
    if named - set(_NAMESPACES):
        raise SystemExit(f"{picture} names {', '.join(sorted(named - set(_NAMESPACES)))}")


def _photograph(page: Path) -> None:
    """Takes pictures of the page in light, in dark and in the width of a phone."""
    browser_path = shutil.which("chromium") or "/usr/bin/chromium"
    with sync_playwright() as playwright:
        options = ["--no-sandbox"] if os.getuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=browser_path, args=options)
        for picture in _SHOTS:
            view = browser.new_page(
                viewport={"width": picture.width, "height": picture.height}, color_scheme=picture.scheme
            )
            view.goto(page.as_uri())
            view.screenshot(path=PICTURES / f"{picture.name}.png")
        browser.close()


if __name__ == "__main__":
    main()
