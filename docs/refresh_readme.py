"""Run the commands that README.md and pages of docs/ show the output of, and put what they print in its place.

    .venv/bin/python docs/refresh_readme.py

A comment `<!-- run: COMMAND -->` names the command; the code block right after it is replaced. The commands of a page
run in order in one temporary directory, whose path is left out of what they print.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[1]
PAGES = (ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in ("architecture", "jobs", "synthesis")))
JUDGES = ROOT / "docs/judges.md"
"""A page without graphs, which shows what a run of minutes gave."""
PYTHON = ".venv/bin/python"
BLOCK = re.compile(r"(<!-- run: (?P<command>.+?) -->\n```(?P<language>\w+)\n)(?P<output>.*?)(?=```)", re.S)


def output_of(command: str, directory: Path) -> str:
    """What `command` prints to stdout and stderr when it is run in `directory`.

    Raises:
        subprocess.CalledProcessError: it fails.
    """
    done = subprocess.run(
        command.replace(PYTHON, sys.executable),
        shell=True,
        check=True,
        cwd=directory,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    lines = done.stdout.replace(f"{directory}/", "").rstrip().splitlines()
    return "".join(f"{line.rstrip()}\n" for line in lines)


def main() -> None:
    """Refresh all pages."""
    for page in (*PAGES, JUDGES):
        with TemporaryDirectory() as name:
            directory = Path(name).resolve()
            (directory / "jobs").symlink_to(ROOT / "jobs")
            before = page.read_text(encoding="utf-8")
            after = BLOCK.sub(lambda b: b[1] + output_of(b["command"], directory), before)  # noqa: B023 - used at once
        page.write_text(after, encoding="utf-8")
        print(f"{page.name}: {'as it was' if after == before else 'refreshed'}")


if __name__ == "__main__":
    main()
