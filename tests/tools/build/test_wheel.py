"""The wheel: what is in it, and a job that it runs in an empty folder, with the bytes of the checkout."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from pipeline import CODE, PROJECT
from pipeline.cli.main import main

SETTINGS = ("job=quickstart", "data.limit=4", "sampling.max_tokens=16", "progress=none")
TOP = {"pipeline", "operators", "tools"}
SOME = (
    *("pipeline/py.typed", "pipeline/results/report/page.css", "pipeline/_project/conf/config.yaml"),
    *("pipeline/_project/jobs/quickstart.yaml", "pipeline/_project/jobs/data/quickstart.jsonl"),
    *("pipeline/_project/models/tiny/tiny-q8_0.gguf", "pipeline/_project/models/tiny/score.py"),
)


def test_in_a_checkout_code_and_project_are_one_folder():
    assert PROJECT == CODE
    assert (PROJECT / "conf/config.yaml").is_file()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built by pip from what git has, so that nothing of it stands in this folder."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(["git", "clone", "-q", str(CODE), str(folder / "source")], check=True)
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "-w",
        str(folder / "dist"),
        str(folder / "source"),
    ]
    subprocess.run(build, check=True)
    (made,) = (folder / "dist").iterdir()
    return made


@pytest.mark.faults
def test_it_holds_the_code_and_below_one_package_the_rest(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == TOP
    assert set(SOME) <= set(names)
    inside = {name.removeprefix("pipeline/_project/") for name in names if name.startswith("pipeline/_project/")}
    there = {
        path.relative_to(PROJECT).as_posix() for folder in ("conf", "jobs") for path in (PROJECT / folder).rglob("*")
    }
    wanted = {name for name in there if (PROJECT / name).is_file() and "__pycache__" not in name}
    assert {name for name in inside if not name.startswith("models/")} == wanted
    assert not [name for name in names if "__pycache__" in name or name.startswith(("tests/", "docs/"))]


@pytest.mark.faults
def test_a_job_runs_from_it_in_an_empty_folder_with_the_bytes_of_the_checkout(wheel, tmp_path):
    venv.create(tmp_path / "venv")
    python = tmp_path / "venv/bin/python"
    (site,) = (tmp_path / "venv/lib").glob("python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(site), str(wheel)]
    subprocess.run(install, check=True)
    (tmp_path / "empty").mkdir()
    ran = subprocess.run(
        [python, "-m", "pipeline", *SETTINGS], cwd=tmp_path / "empty", capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert main([*SETTINGS, f"output_dir={tmp_path / 'checkout'}"]) == 0
    made, expected = (folder / "data" for folder in (tmp_path / "empty/outputs/quickstart", tmp_path / "checkout"))
    assert [p.read_bytes() for p in sorted(made.iterdir())] == [p.read_bytes() for p in sorted(expected.iterdir())]
    made_by_python = "run('dialogues', {'data.limit': 1}, progress='none')"
    public = f"from pipeline import run; print({made_by_python}.counts['data_rows'])"
    said = subprocess.run([python, "-c", public], cwd=tmp_path / "empty", capture_output=True, text=True, check=True)
    assert said.stdout == "1\n"
