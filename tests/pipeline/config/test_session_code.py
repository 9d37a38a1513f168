"""Functions and classes that no file holds, such as those of a notebook: what they do counts, wherever it stands."""

from __future__ import annotations

import os
import subprocess
import sys
import types

import pytest

from pipeline.api.errors import ConfigError
from pipeline.config.build import load_object
from pipeline.config.fingerprint import differences
from pipeline.config.session_code import session_code

CHANGES = {
    "its code": ("def f(row): return 1", "def f(row): return 2"),
    "a text": ("def f(row): return {'a': 'x'}", "def f(row): return {'a': 'y'}"),
    "an attribute": ("def f(row): return row.real", "def f(row): return row.imag"),
    "a default": ("def f(row, n=1): return n", "def f(row, n=2): return n"),
    "a keyword's default": ("def f(row, *, n=1): return n", "def f(row, *, n=2): return n"),
    "a lambda": ("f = lambda row: 1", "f = lambda row: 2"),
    "a partial": (
        "from functools import partial\ndef g(n, row): return n\nf = partial(g, 1)",
        "from functools import partial\ndef g(n, row): return n\nf = partial(g, 2)",
    ),
    "a partial's function": (
        "from functools import partial\ndef g(n, row): return n\nf = partial(g, 1)",
        "from functools import partial\ndef g(n, row): return -n\nf = partial(g, 1)",
    ),
    "a closure": (
        "def make(n):\n def f(row): return n\n return f\nf = make(1)",
        "def make(n):\n def f(row): return n\n return f\nf = make(2)",
    ),
    "an inner function": (
        "def f(row):\n def g(): return 1\n return g()",
        "def f(row):\n def g(): return 2\n return g()",
    ),
    "a helper": ("def g(): return 1\ndef f(row): return g()", "def g(): return 2\ndef f(row): return g()"),
    "a helper's helper": (
        "def h(): return 1\ndef g(): return h()\ndef f(row): return [g() for _ in row]",
        "def h(): return 2\ndef g(): return h()\ndef f(row): return [g() for _ in row]",
    ),
    "a cached helper": (
        "from functools import lru_cache\n@lru_cache\ndef g(): return 1\ndef f(row): return g()",
        "from functools import lru_cache\n@lru_cache\ndef g(): return 2\ndef f(row): return g()",
    ),
    "a constant": ("N = 1\ndef f(row): return N", "N = 2\ndef f(row): return N"),
    "a list": ("N = [1, [2]]\ndef f(row): return N", "N = [1, [3]]\ndef f(row): return N"),
    "a set": ("N = {'a', 'b'}\ndef f(row): return N", "N = {'a', 'c'}\ndef f(row): return N"),
    "a pattern": (
        "import re\nN = re.compile('a')\ndef f(row): return N.match(row)",
        "import re\nN = re.compile('b')\ndef f(row): return N.match(row)",
    ),
    "an array": (
        "import numpy\nN = numpy.arange(4)\ndef f(row): return N",
        "import numpy\nN = numpy.arange(5)\ndef f(row): return N",
    ),
    "a function in a mapping": (
        "def g(): return 1\nN = {'g': g}\ndef f(row): return N",
        "def g(): return 2\nN = {'g': g}\ndef f(row): return N",
    ),
    "a decorator": (
        "def d(g):\n def h(row): return g(row)\n return h\n@d\ndef f(row): return 1",
        "def d(g):\n def h(row): return -g(row)\n return h\n@d\ndef f(row): return 1",
    ),
    "what is decorated": (
        "def d(g):\n def h(row): return g(row)\n return h\n@d\ndef f(row): return 1",
        "def d(g):\n def h(row): return g(row)\n return h\n@d\ndef f(row): return 2",
    ),
    "what contextlib decorates": (
        "from contextlib import contextmanager\n@contextmanager\ndef g(): yield 1\ndef f(row): return g()",
        "from contextlib import contextmanager\n@contextmanager\ndef g(): yield 2\ndef f(row): return g()",
    ),
    "a method": (
        "class A:\n def m(self): return 1\n def __call__(self, row): return self.m()\nf = A()",
        "class A:\n def m(self): return 2\n def __call__(self, row): return self.m()\nf = A()",
    ),
    "an attribute of an instance": (
        "class A:\n def __init__(self, n): self.n = n\n def __call__(self, row): return self.n\nf = A(1)",
        "class A:\n def __init__(self, n): self.n = n\n def __call__(self, row): return self.n\nf = A(2)",
    ),
    "a bound method": (
        "class A:\n n = 1\n def m(self, row): return self.n\nf = A().m",
        "class A:\n n = 2\n def m(self, row): return self.n\nf = A().m",
    ),
    "a base class": (
        "class B:\n def g(self): return 1\nclass f(B): pass",
        "class B:\n def g(self): return 2\nclass f(B): pass",
    ),
    "a property": (
        "class f:\n @property\n def g(self): return 1",
        "class f:\n @property\n def g(self): return 2",
    ),
    "a static method": (
        "class f:\n @staticmethod\n def g(): return 1",
        "class f:\n @staticmethod\n def g(): return 2",
    ),
    "an enumeration": (
        "import enum\nclass E(enum.Enum):\n A = 1\ndef f(row): return E.A.value",
        "import enum\nclass E(enum.Enum):\n A = 2\ndef f(row): return E.A.value",
    ),
    "a data class": (
        "import dataclasses\n@dataclasses.dataclass\nclass D:\n n: int = 1\ndef f(row): return D().n",
        "import dataclasses\n@dataclasses.dataclass\nclass D:\n n: int = 2\ndef f(row): return D().n",
    ),
    "an attribute of a function": ("def f(row): return f.n\nf.n = 1", "def f(row): return f.n\nf.n = 2"),
}


def code(source: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the hashes of `f` of a module without a file."""
    module = types.ModuleType("of_no_file")
    monkeypatch.setitem(sys.modules, "of_no_file", module)
    exec(compile(source, "<cell>", "exec"), vars(module))
    return session_code("of_no_file.f")[0]


@pytest.mark.parametrize("what", CHANGES)
def test_whatever_changes_what_it_does_changes_its_hashes_and_nothing_else_does(what, monkeypatch):
    before, after = CHANGES[what]
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
