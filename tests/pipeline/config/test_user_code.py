"""The source files behind a user's operator: all that it is made of, and nothing else."""

from __future__ import annotations

import ast
import importlib
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pipeline.config.fingerprint import code_of


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Iterator[Path]:
    """A directory that is searched for modules; what is imported from it is forgotten."""
    monkeypatch.syspath_prepend(str(tmp_path))
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        del sys.modules[name]


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def code(module: str) -> dict[str, str]:
    importlib.import_module(module)
    return code_of(module)


def test_it_is_the_module_and_those_beside_it_that_it_imports(folder):
    files = {
        "mine_a.py": "import json\nimport mine_b\nfrom mine_pack import deep\n\ndef later():\n    import mine_c\n",
        "mine_b.py": "import mine_a\n",
        "mine_c.py": "",
        "mine_pack/__init__.py": "from . import near\n",
        "mine_pack/deep.py": "from .near import x\n",
        "mine_pack/near.py": "x = 1\n",
        "mine_not.py": "",
    }
    write(folder, files)
    assert list(code("mine_a")) == ["mine_a", "mine_b", "mine_c", "mine_pack", "mine_pack.deep", "mine_pack.near"]
    assert list(code("mine_pack.near")) == ["mine_pack.near"]


@pytest.mark.parametrize("changed", ["mine_d.py", "mine_e.py"])
def test_a_change_in_any_of_them_shows(folder, changed):
    write(folder, {"mine_d.py": "import mine_e\n", "mine_e.py": "x = 1\n"})
    before = code("mine_d")
    assert code("mine_d") == before
    (folder / changed).write_text((folder / changed).read_text() + "y = 2\n")
    after = code("mine_d")
    assert [name for name in before if before[name] != after[name]] == [changed.removesuffix(".py")]


def test_what_else_is_loaded_does_not_count(folder):
    write(folder, {"mine_f.py": "", "mine_g.py": ""})
    before = code("mine_f")
    importlib.import_module("mine_g")
    assert code("mine_f") == before


def test_this_project_and_what_has_no_source_do_not_count():
    assert code("operators.filter") == code("pipeline.api.protocols") == code("math") == {}
    assert not [name for name in code("tests.pipeline.job_ops") if name.startswith("pipeline")]


def test_of_an_installed_package_the_package_counts_and_not_its_neighbours():
    assert {name.partition(".")[0] for name in code("tqdm.std")} == {"tqdm"}


def test_threads_parse_one_after_the_other(folder, monkeypatch):
    """Python 3.11's parser raises SystemError now and then where two threads use it at once."""
    write(folder, {"mine_t.py": "import json\n"})
    expected, parse, inside, most = code("mine_t"), ast.parse, [0], [0]

    def noted(source: bytes) -> ast.AST:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        time.sleep(0.02)
        inside[0] -= 1
        return parse(source)

    with monkeypatch.context() as patched, ThreadPoolExecutor(4) as threads:
        patched.setattr(ast, "parse", noted)
        found = list(threads.map(code_of, ["mine_t"] * 4))
    assert found == [expected] * 4
    assert most == [1]
