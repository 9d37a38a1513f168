"""The documents name what is there, and nothing names the machine that it was made on."""

from __future__ import annotations

import re
import shutil
import subprocess
import textwrap
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from operators.settings import SamplingSettings
from operators.settings.sampling import STEP_ORDER

ROOT = Path(__file__).resolve().parents[1]
HERE = re.compile(
    r"(?<![\w.~-])/(?:work|root|home|Users|tmp|private|mnt)/\w|\bshared/(?:data|design|facts|style|anchors)"
)
"""Folders of one machine or of whoever built this; examples in documents are `/models/my.gguf`."""


def folders() -> set[str]:
    """Folders with Python files, as the table of docs/architecture.md names them."""
    found = {
        path.parent.relative_to(ROOT)
        for top in ("pipeline", "operators", "tools")
        for path in ROOT.glob(f"{top}/**/*.py")
    }
    return {path.as_posix() for path in found} - {"pipeline", "tools"}


def test_every_folder_is_in_the_table_of_folders():
    table = (
        (ROOT / "docs/architecture.md").read_text(encoding="utf-8").partition("## The folders")[2].partition("\n## ")[0]
    )
    named = {
        name
        for line in table.splitlines()
        for name in re.findall(r"`([^`]+)`", line.partition("|")[2].partition("|")[0])
    }
    inside = {"results/report", "results/compare", "strategies/block_diffusion", "strategies/speculative"}
    assert folders() - named == {name for name in folders() if name.endswith(tuple(inside))}
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_changelog_has_the_version_of_the_project():
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.M)
    assert version is not None
    assert version[1] in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


PAGES = ("README.md", "CONTRIBUTING.md", *(f"docs/{page.name}" for page in sorted((ROOT / "docs").glob("*.md"))))


def test_files_that_a_page_names_are_there():
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        named = re.findall(r"`((?:pipeline|operators|tools|conf|jobs|models|tests|docs)/[\w./-]+)`", text)
        assert [path for path in named if not (ROOT / path).exists()] == [], page


@pytest.mark.parametrize(
    ("page", "lines"), [("README.md", 170), ("CONTRIBUTING.md", 60), ("docs/architecture.md", 200)]
)
def test_a_page_stays_short(page, lines):
    assert len((ROOT / page).read_text(encoding="utf-8").splitlines()) <= lines


def test_the_function_that_the_architecture_quotes_is_that_of_the_code():
    quoted = (ROOT / "docs/architecture.md").read_text(encoding="utf-8").partition("```python\n")[2].partition("```")[0]
    code = (ROOT / "pipeline/runs/run.py").read_text(encoding="utf-8")
    assert quoted
    assert textwrap.indent(quoted, "    ") in code


@pytest.mark.parametrize("page", PAGES)
def test_links_of_a_page_lead_somewhere(page):
    here = ROOT / page
    links = re.findall(r"\]\(((?!https?:)[^)#\s]*)(?:#([\w-]+))?\)", here.read_text(encoding="utf-8"))
    for name, anchor in links:
        target = here.parent / name if name else here
        assert target.exists(), name
        if anchor:
            titles = re.findall(r"^#+ (.+)", target.read_text(encoding="utf-8"), re.M)
            assert anchor in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}, anchor


def test_a_page_begins_with_a_command():
    for page in PAGES[2:]:
        beginning = "\n".join((ROOT / page).read_text(encoding="utf-8").splitlines()[:8])
        assert re.search(r"^```|^    ", beginning, re.M), f"{page}: no code in the first lines"


def test_before_a_commit_the_same_runs_as_in_make_check():
    check = re.search(r"^check:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    assert check is not None
    commands = check[1].replace("\t@", "").replace("$(PY)", "$(VENV)/bin/python").replace("$(VENV)", ".venv")
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"][0]["hooks"]
    assert [hook["entry"] for hook in hooks] == commands.splitlines()


def test_every_sampling_key_is_explained_with_its_default():
    page = (ROOT / "docs/sampling.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", page, re.M))
    settings = SamplingSettings()
    assert rows.keys() == {f.name for f in fields(settings)}
    for name, text in rows.items():
        default = getattr(settings, name)
        if isinstance(default, int | float) and not isinstance(default, bool):
            assert float(text.split()[0]) == default, name
    assert all(f"`{step}`" in page for step in STEP_ORDER)


def test_no_file_names_this_machine():
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("not a git work tree: what belongs to the project is not known")
    listed = [git, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True, text=True).stdout.split("\0")
    contents = {n: (ROOT / n).read_bytes() for n in names if n and (ROOT / n).is_file()}
    texts = {n: content.decode(errors="replace") for n, content in contents.items() if b"\0" not in content}
    found = {n: hit[0] for n, text in texts.items() if (hit := HERE.search(text))}
    assert found == {}
