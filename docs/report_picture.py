"""Take a picture of the report.html of a finished run: docs/report.png of quickstart, report_images.png of caption.

    .venv/bin/python -m pipeline job=quickstart
    .venv/bin/python docs/report_picture.py outputs/quickstart

It needs Pillow and headless Chromium (`chromium`, `chromium-browser` or `google-chrome`). Take that of quickstart of a
run that had the machine to itself: the times are in the picture.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from PIL import Image


class Picture(NamedTuple):
    """A picture of a report: its file, width and height, and a style that hides what is not in it."""

    name: str
    width: int
    height: int
    style: str


PICTURES = {
    "quickstart": Picture("report.png", 1200, 1640, "article ~ article { display: none }"),
    "caption": Picture(
        "report_images.png",
        1200,
        1024,
        "header, section ~ section, article:nth-of-type(2), article:nth-of-type(3) { display: none }"
        " dd:has(img) { font-size: 0 }",  # the paths of this machine
    ),
}
"""By the job. Of quickstart one sample row, so that the drawings are in the picture, too; of caption three."""
COLOURS = 64
"""Few colours keep the file small; the page has few."""
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--hide-scrollbars")


def browser() -> str:
    """Return the path of an installed Chromium.

    Raises:
        SystemExit: there is none.
    """
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    raise SystemExit("no Chromium is installed (apt-get install chromium)")


def main() -> None:
    """Photograph the top of the report of the run that the command line names."""
    run = Path(sys.argv[1])
    picture = PICTURES[json.loads((run / "manifest.json").read_text(encoding="utf-8"))["job"]]
    file = Path(__file__).resolve().parent / picture.name
    with TemporaryDirectory() as name:
        here = Path(name)
        page, raw = here / "report.html", here / "report.png"
        report = (run / "report.html").read_text(encoding="utf-8")
        page.write_text(report.replace("</head>", f"<style>{picture.style}</style></head>"), encoding="utf-8")
        size = f"--window-size={picture.width},{picture.height}"
        command = [browser(), *FLAGS, f"--user-data-dir={here / 'profile'}", size]
        command += [f"--screenshot={raw}", page.as_uri()]
        subprocess.run(command, check=True, timeout=120, stderr=subprocess.DEVNULL)
        with Image.open(raw) as image:
            image.convert("RGB").quantize(COLOURS).save(file, optimize=True)
    print(f"{file.name}: {file.stat().st_size // 1024} KiB")


if __name__ == "__main__":
    main()
