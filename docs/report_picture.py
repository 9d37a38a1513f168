"""Take the picture docs/report.png of the report.html of a finished run, with one of its sample rows.

    .venv/bin/python -m pipeline job=quickstart
    .venv/bin/python docs/report_picture.py outputs/quickstart

It needs Pillow and headless Chromium (`chromium`, `chromium-browser` or `google-chrome`). Take it of a run that had the
machine to itself: the times are in the picture.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

PICTURE = Path(__file__).resolve().parent / "report.png"
SIZE = (1200, 1640)
ONE_SAMPLE = "<style>article ~ article { display: none }</style></head>"
"""Hides all sample rows but the first, so that the drawings are in the picture too."""
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
    report = Path(sys.argv[1]) / "report.html"
    with TemporaryDirectory() as name:
        here = Path(name)
        page, raw = here / "report.html", here / "report.png"
        page.write_text(report.read_text(encoding="utf-8").replace("</head>", ONE_SAMPLE), encoding="utf-8")
        size = ",".join(map(str, SIZE))
        command = [browser(), *FLAGS, f"--user-data-dir={here / 'profile'}", f"--window-size={size}"]
        command += [f"--screenshot={raw}", page.as_uri()]
        subprocess.run(command, check=True, timeout=120, stderr=subprocess.DEVNULL)
        with Image.open(raw) as image:
            image.convert("RGB").quantize(COLOURS).save(PICTURE, optimize=True)
    print(f"{PICTURE.name}: {PICTURE.stat().st_size // 1024} KiB")


if __name__ == "__main__":
    main()
