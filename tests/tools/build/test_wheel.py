"""The wheel has all that a run reads, adds no folder of a common name but ours, and gives the bytes of the checkout."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from pipeline import PROJECT
from pipeline.api.errors import ExitCode
from pipeline.cli.main import main

NEEDED = 77
"""The first setuptools that reads `license = "MIT"`."""
try:
    THERE = int(importlib.metadata.version("setuptools").split(".")[0])
except importlib.metadata.PackageNotFoundError:
    THERE = 0
TAKEN = ("LICENSE", "README.md", "pyproject.toml", "requirements.lock", "pipeline", "operators", "tools")
TAKEN_TOO = ("conf", "jobs", "models", "tests/families/encoders")
UNREAD = {".png"}
"""Endings of files in conf, jobs and models that no run reads."""

pytestmark = [
    pytest.mark.slow("builds a wheel and installs it"),
    pytest.mark.laws,
    pytest.mark.skipif(THERE < NEEDED, reason=f"building needs setuptools {NEEDED} or later, here is {THERE}"),
]


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """A copy of the checkout to build in, as a build leaves files beside its sources."""
    copy = tmp_path_factory.mktemp("source")
    for name in (*TAKEN, *TAKEN_TOO):
        if (PROJECT / name).is_dir():
            shutil.copytree(PROJECT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(PROJECT / name, copy / name)
    return copy


def built(source: Path, folder: Path) -> Path:
    """Build the wheel of `source` into `folder`, with nothing from an index."""
    options = ["--no-deps", "--no-index", "--no-build-isolation", "--quiet", "--wheel-dir", str(folder)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(source)], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(source, tmp_path_factory) -> Path:
    return built(source, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory) -> Path:
    """The Python of an environment with the wheel, and with our dependencies from the environment of the tests."""
    folder = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin/python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install"]
    subprocess.run([*pip, "--no-deps", "--no-index", "--quiet", str(wheel)], check=True)
    (site,) = folder.glob("lib/python3*/site-packages")
    ours = [path for path in sys.path if path.endswith("site-packages")]
    (site / "dependencies.pth").write_text("\n".join(ours) + "\n", encoding="utf-8")
    return python


def names(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


def test_it_has_every_file_that_a_run_reads(wheel):
    modules = {p for name in ("pipeline", "operators", "tools") for p in (PROJECT / name).rglob("*")}
    modules -= {PROJECT / f"tools/build/{name}.sh" for name in ("android", "image")}  # start from a checkout
    beside = {p for name in ("conf", "jobs", "models") for p in (PROJECT / name).rglob("*")}
    beside |= {PROJECT / f"tests/families/encoders/{name}.gguf" for name in ("classifier", "reranker")}
    wanted = {p.relative_to(PROJECT).as_posix() for p in modules if p.is_file() and "__pycache__" not in p.parts}
    files = {p for p in beside if p.is_file() and "__pycache__" not in p.parts and p.suffix not in UNREAD}
    wanted |= {f"pipeline/_project/{p.relative_to(PROJECT).as_posix()}" for p in files}
    assert len(wanted) > 300
    assert wanted - names(wheel) == set()


def test_it_takes_no_more_names_than_those_of_its_packages(wheel):
    tops = {name.split("/")[0] for name in names(wheel)}
    assert {name for name in tops if not name.endswith(".dist-info")} == {"pipeline", "operators", "tools"}


def test_the_source_distribution_makes_the_same_wheel(source, wheel, tmp_path):
    code = "from setuptools.build_meta import build_sdist; import sys; build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=source, check=True, stdout=subprocess.DEVNULL)
    (archive,) = tmp_path.glob("*.tar.gz")
    shutil.unpack_archive(archive, tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    assert names(built(unpacked, tmp_path / "dist")) == names(wheel)


def test_an_index_would_take_the_wheel(wheel):
    """twine checks the metadata and renders README.md, as an index does."""
    done = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", str(wheel)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


def test_what_the_wheel_asks_for_is_what_the_lock_has(python):
    """`pip check` of an environment with the wheel and the locked dependencies finds nothing missing or unfit."""
    subprocess.run([sys.executable, "-m", "pip", "--python", str(python), "check"], check=True)


@pytest.mark.parametrize("job", ["quickstart", "classify_head", "dialogues"])
def test_a_job_gives_the_bytes_of_the_checkout_in_an_empty_folder(python, job, tmp_path, monkeypatch):
    """`dialogues` names a function in jobs/, `classify_head` a model in tests/."""
    arguments = [f"job={job}", "data.limit=4", "progress=none", "report=false"]
    empty, other = tmp_path / "empty", tmp_path / "other"
    empty.mkdir()
    other.mkdir()
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([python, "-m", "pipeline", *arguments], cwd=empty, env=alone, check=True)
    assert list(python.parents[1].glob("llama-tried-*"))  # this environment has no record of our build
    monkeypatch.chdir(other)
    assert main(arguments) == ExitCode.DONE
    data = {path.name: path.read_bytes() for path in (other / f"outputs/{job}/data").iterdir()}
    assert data
    assert {path.name: path.read_bytes() for path in (empty / f"outputs/{job}/data").iterdir()} == data


@pytest.mark.parametrize("command", [["jobs"], ["operators"], ["doctor"]])
def test_a_command_works_in_an_empty_folder(python, command, tmp_path):
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([python, "-m", "pipeline", *command], cwd=tmp_path, env=alone, check=True)
    assert not list(tmp_path.iterdir())
