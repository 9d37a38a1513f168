"""What counts as another job: settings that decide bytes, and the code behind a user's operators: the source files
that they are made of, and functions and classes that no file holds, such as those of a notebook."""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pipeline.api.errors import ConfigError
from pipeline.config.build import build_graph, load_object
from pipeline.config.fingerprint import code_of, differences, fingerprint_of
from pipeline.config.session_code import session_code
from pipeline.run_dir.manifest import digest
from pipeline.settings import JobSettings, NodeSettings


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
    names = [f"mine_t{number}" for number in range(4)]
    write(folder, {f"{name}.py": f"import json  # {name}\n" for name in names})
    parse, inside, most = ast.parse, [0], [0]

    def noted(source: bytes) -> ast.AST:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        time.sleep(0.02)
        inside[0] -= 1
        return parse(source)

    with monkeypatch.context() as patched, ThreadPoolExecutor(4) as threads:
        patched.setattr(ast, "parse", noted)
        found = list(threads.map(code_of, names))
    assert found == [code(name) for name in names]
    assert most == [1]


CHANGES = {
    "its code": "def f(row): return @",
    "a text": "def f(row): return {'a': '@'}",
    "an attribute": "def f(row): return row.a@",
    "a default": "def f(row, n=@): return n",
    "a keyword's default": "def f(row, *, n=@): return n",
    "a lambda": "f = lambda row: @",
    "a partial": "from functools import partial\ndef g(n, row): return n\nf = partial(g, @)",
    "a partial's function": "from functools import partial\ndef g(n, row): return @ * n\nf = partial(g, 1)",
    "a closure": "def make(n):\n def f(row): return n\n return f\nf = make(@)",
    "an inner function": "def f(row):\n def g(): return @\n return g()",
    "a helper": "def g(): return @\ndef f(row): return g()",
    "a helper's helper": "def h(): return @\ndef g(): return h()\ndef f(row): return [g() for _ in row]",
    "a cached helper": "from functools import lru_cache\n@lru_cache\ndef g(): return @\ndef f(row): return g()",
    "a constant": "N = @\ndef f(row): return N",
    "a list": "N = [1, [@]]\ndef f(row): return N",
    "a set": "N = {'a', '@'}\ndef f(row): return N",
    "a pattern": "import re\nN = re.compile('@')\ndef f(row): return N.match(row)",
    "an array": "import numpy\nN = numpy.arange(@)\ndef f(row): return N",
    "a function in a mapping": "def g(): return @\nN = {'g': g}\ndef f(row): return N",
    "a decorator": "def d(g):\n def h(row): return @ * g(row)\n return h\n@d\ndef f(row): return 1",
    "what is decorated": "def d(g):\n def h(row): return g(row)\n return h\n@d\ndef f(row): return @",
    "what contextlib decorates": "from contextlib import contextmanager\n@contextmanager\ndef g(): yield @\n"
    "def f(row): return g()",
    "a method": "class A:\n def m(self): return @\n def __call__(self, row): return self.m()\nf = A()",
    "an attribute of an instance": "class A:\n def __init__(self, n): self.n = n\n"
    " def __call__(self, row): return self.n\nf = A(@)",
    "a bound method": "class A:\n n = @\n def m(self, row): return self.n\nf = A().m",
    "a base class": "class B:\n def g(self): return @\nclass f(B): pass",
    "a property": "class f:\n @property\n def g(self): return @",
    "a static method": "class f:\n @staticmethod\n def g(): return @",
    "an enumeration": "import enum\nclass E(enum.Enum):\n A = @\ndef f(row): return E.A.value",
    "a data class": "import dataclasses\n@dataclasses.dataclass\nclass D:\n n: int = @\ndef f(row): return D().n",
    "an attribute of a function": "def f(row): return f.n\nf.n = @",
}
"""Programs in which 1 or 2 stands for an @ (with no name behind it)."""


def code_in_session(source: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the hashes of `f` of a module without a file."""
    module = types.ModuleType("of_no_file")
    monkeypatch.setitem(sys.modules, "of_no_file", module)
    exec(compile(source, "<cell>", "exec"), vars(module))
    return session_code("of_no_file.f")[0]


@pytest.mark.parametrize("what", CHANGES)
def test_whatever_changes_what_it_does_changes_its_hashes_and_nothing_else_does(what, monkeypatch):
    before, after = (re.sub(r"@(?!\w)", number, CHANGES[what]) for number in "12")
    of_before = code_in_session(before, monkeypatch)
    assert "of_no_file:f" in of_before
    assert code_in_session(f"unused = 1\n\n# a remark\n{before}\nother = 2", monkeypatch) == of_before
    assert code_in_session(after, monkeypatch) != of_before


def test_every_process_gives_the_same_hashes():
    """The order of sets and the places of objects differ between processes."""
    script = (
        "import sys\nfrom pipeline.config.session_code import session_code\nN = {'a', 'b', 'c', 'd'}\n"
        "class A:\n  def __call__(self, row): return row in {'x', 'y', 'z'} and N and self\n"
        "f = A()\nf.itself = f\nprint(session_code('__main__.f'))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", script], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1
    assert b"__main__:N" in found.pop()


def test_modules_with_files_are_named_and_a_lock_counts_with_its_type(monkeypatch):
    source = (
        "import json, threading\nfrom tests import composing\nLOCK = threading.Lock()\n"
        "def f(row):\n import tests.reports\n with LOCK: return json.dumps(composing)"
    )
    hashes = code_in_session(source, monkeypatch)
    assert {key.partition(":")[2] for key in hashes} == {"f", "json", "composing", "LOCK"}
    assert session_code("of_no_file.f")[1] == {"json", "tests.composing", "tests.reports"}


@pytest.mark.parametrize(
    "target", [f"{__name__}.code_in_session", f"{__name__}.CHANGES", "builtins.len", "math.sqrt", "a.b"]
)
def test_what_has_a_file_counts_with_its_file(target):
    assert session_code(target) == ({}, set())


def test_an_error_names_what_has_changed_and_what_is_no_longer_there():
    with pytest.raises(ConfigError, match=r"one of a notebook or a script, .* put it into a module"):
        load_object("__main__.nowhere_at_all")
    key = "nodes.loud.code.__main__:LIMIT"
    assert differences({key: "a"}, {key: "b"}) == ["LIMIT of __main__, code of the node 'loud', has changed"]


OPS = "tests.pipeline.job_ops"


@dataclass
class Group:
    """A config group: one key that decides bytes, two that do not."""

    temperature: float = 0.0
    path: str = "here.jsonl"
    slots: int = field(default=16, metadata={"fingerprint": False})


def fingerprint(sampling=None, on_node=None, **numbers):
    nodes = {
        "numbers": NodeSettings({"_target_": f"{OPS}.Numbers", "rows": 5, **numbers}),
        "square": NodeSettings({"_target_": f"{OPS}.Square", "bad": on_node}, "numbers"),
        "write": NodeSettings({"_target_": f"{OPS}.Parquet"}, "square"),
    }
    settings = JobSettings(nodes=nodes, sampling=sampling)
    return fingerprint_of(settings, build_graph(settings))


def test_a_group_that_a_node_takes_whole_stands_under_the_key_that_users_type():
    found = fingerprint(Group(0.5), Group(0.5))
    assert found["sampling.temperature"] == 0.5
    assert not [k for k in found if "path" in k or "slots" in k]
    assert fingerprint(Group(0.5), Group(0.7))["nodes.square.op.bad.temperature"] == 0.7


def test_a_group_that_no_node_takes_does_not_count():
    assert fingerprint(Group(0.5)) == fingerprint(Group(0.7))


def test_the_content_of_files_counts_and_their_place_does_not():
    assert fingerprint(content="a") != fingerprint(content="b")
    assert fingerprint()["nodes.numbers.content"] == "a"


def test_differences_name_the_key_and_both_values():
    before, now = fingerprint(Group(0.0), Group(0.0)), fingerprint(Group(0.5), Group(0.5))
    assert differences(before, now) == ["sampling.temperature: 0.0 -> 0.5"]
    assert differences(before, before) == []
    assert differences({"nodes.f.code.mine.ops": "a" * 64}, {"nodes.f.code.mine.ops": "b" * 64}) == [
        "mine/ops.py, code of the node 'f', has changed"
    ]
    assert digest(before) != digest(now)
    assert digest(before) == digest(dict(reversed(before.items())))
