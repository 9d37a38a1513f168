"""The wheel: what setuptools does for pyproject.toml, and the folders that are no packages."""

from __future__ import annotations

import shutil
from pathlib import Path

from setuptools.command.build_py import build_py  # type: ignore[import-untyped]

FOLDERS = ("conf", "jobs", "models")
INSIDE = "pipeline/_project"


class BuildWithProject(build_py):
    """Puts conf/, jobs/ and models/ into pipeline/_project, which `pipeline.PROJECT` names. At the top of site-packages
    they would hide folders of others."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:  # the checkout has them
            return
        for folder in FOLDERS:
            place = Path(self.build_lib, INSIDE, folder)
            shutil.rmtree(place, ignore_errors=True)
            shutil.copytree(folder, place, ignore=shutil.ignore_patterns("__pycache__", "*.png", "*.md"))
