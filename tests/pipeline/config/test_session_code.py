"""Functions and classes that no file holds, such as those of a notebook: what they do counts, wherever it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import types

import pytest

from pipeline.api.errors import ConfigError
from pipeline.config.build import load_object
from pipeline.config.fingerprint import differences
from pipeline.config.session_code import session_code

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


def code(source: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the hashes of `f` of a module without a file."""
    module = types.ModuleType("of_no_file")
    monkeypatch.setitem(sys.modules, "of_no_file", module)
    exec(compile(source, "<cell>", "exec"), vars(module))
    return session_code("of_no_file.f")[0]


@pytest.mark.parametrize("what", CHANGES)
def test_whatever_changes_what_it_does_changes_its_hashes_and_nothing_else_does(what, monkeypatch):
    before, after = (re.sub(r"@(?!\w)", number, CHANGES[what]) for number in "12")
    of_before = code(before, monkeypatch)
    assert "of_no_file:f" in of_before
    assert code(f"unused = 1\n\n# a remark\n{before}\nother = 2", monkeypatch) == of_before
    assert code(after, monkeypatch) != of_before


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
    hashes = code(source, monkeypatch)
    assert {key.partition(":")[2] for key in hashes} == {"f", "json", "composing", "LOCK"}
    assert session_code("of_no_file.f")[1] == {"json", "tests.composing", "tests.reports"}


@pytest.mark.parametrize("target", [f"{__name__}.code", f"{__name__}.CHANGES", "builtins.len", "math.sqrt", "a.b"])
def test_what_has_a_file_counts_with_its_file(target):
    assert session_code(target) == ({}, set())


def test_an_error_names_what_has_changed_and_what_is_no_longer_there():
    with pytest.raises(ConfigError, match=r"one of a notebook or a script, .* put it into a module"):
        load_object("__main__.nowhere_at_all")
    key = "nodes.loud.code.__main__:LIMIT"
    assert differences({key: "a"}, {key: "b"}) == ["LIMIT of __main__, code of the node 'loud', has changed"]
