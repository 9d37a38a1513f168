"""The import rules of docs/architecture.md, over the syntax trees of all modules."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MODULES = sorted(p for folder in ("pipeline", "operators") for p in (ROOT / folder).rglob("*.py"))

OPERATORS_MAY_USE = {
    "errors",
    "failpoints",
    "forecast",
    "given",
    "memory",
    "meter",
    "metrics",
    "protocols",
    "records",
    "redaction",
    "shards",
    "storage",
}
"""Modules of `pipeline` that operators build on."""

PLAIN_ENGINE = {"scheduler", "slots", "sequence", "sampler", "recovery", "calls"}
MAY_USE_HYDRA = {"pipeline/__main__.py", "pipeline/config/compose.py"}
STARTS_THREADS = {
    "pipeline/dataflow/executor.py",
    "pipeline/system/signals.py",
    "pipeline/publish/uploader.py",
    "operators/engine/loop/threads.py",
    "operators/generation/store.py",
    "tools/bench/server.py",
}
"""Locks are for everybody; a thread of its own, or a pool of them, is not. The clients of llama-server, which only wait
for answers, are a `concurrent.futures` pool."""
STDLIB_ONLY = ("tools/build/build.py", "tools/build/compilers.py", "tools/build/peers.py")
"""They run before anything is installed."""


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports(path: Path) -> set[str]:
    """Dotted names that a module imports, `from a import b` as a.b."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{'.' * node.level}{node.module or ''}.{alias.name}" for alias in node.names}
    return found


def packages(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imports(path)}


def in_folder(folder: str) -> list[Path]:
    return [p for p in MODULES if name_of(p).startswith(folder)]


def test_there_is_something_to_look_at():
    assert {"pipeline/dataflow/executor.py", "operators/settings/__init__.py"} <= {name_of(p) for p in MODULES}


@pytest.mark.parametrize("path", in_folder("pipeline/"), ids=name_of)
def test_the_engine_knows_no_operator_and_no_llama(path):
    assert not packages(path) & {"operators", "jobs", "llama_cpp", "models"}


@pytest.mark.parametrize("path", in_folder("operators/"), ids=name_of)
def test_operators_reach_only_the_contracts_of_the_engine(path):
    used = {name.split(".")[1] for name in imports(path) if name.startswith("pipeline.")}
    assert used <= OPERATORS_MAY_USE


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_hydra_stays_at_the_door(path):
    assert not packages(path) & {"hydra", "omegaconf"} or name_of(path) in MAY_USE_HYDRA


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_llama_cpp_stays_in_its_folder(path):
    assert "llama_cpp" not in packages(path) or name_of(path).startswith("operators/llama/")


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_llguidance_stays_in_its_folder(path):
    assert "llguidance" not in packages(path) or name_of(path).startswith("operators/constraints/")


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_matplotlib_is_imported_by_what_draws_and_only_when_it_does(path):
    assert "matplotlib" not in packages(path) or name_of(path) == "pipeline/results/report/drawing.py"
    statements = ast.parse(path.read_text(encoding="utf-8")).body
    at_the_top = [node for node in statements if isinstance(node, ast.Import | ast.ImportFrom)]
    assert not [node for node in at_the_top if "matplotlib" in ast.unparse(node)]


def test_a_run_loads_nothing_for_its_report_before_its_end():
    tops = ast.parse((ROOT / "pipeline/results/report/write.py").read_text(encoding="utf-8")).body
    found = {node.module for node in tops if isinstance(node, ast.ImportFrom)}
    assert found <= {"__future__", "pathlib", "pipeline.run_dir.names", "pipeline.system.atomic_files"}


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_threads_stay_where_they_belong(path):
    starts = "Thread(" in path.read_text(encoding="utf-8") or "concurrent" in packages(path)
    assert not starts or name_of(path) in STARTS_THREADS
    assert "multiprocessing" not in packages(path)


@pytest.mark.parametrize(
    "path",
    [p for p in in_folder("operators/engine/") if p.stem in PLAIN_ENGINE or p.parent.name == "sampling"],
    ids=name_of,
)
def test_the_engines_parts_are_plain_python_and_numpy(path):
    foreign = packages(path) - set(sys.stdlib_module_names) - {"numpy", "operators", "pipeline"}
    assert not foreign


@pytest.mark.parametrize("name", STDLIB_ONLY)
def test_the_build_needs_nothing_installed(name):
    assert not packages(ROOT / name) - set(sys.stdlib_module_names) - {"operators"}


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_are_absolute(path):
    assert not [name for name in imports(path) if name.startswith(".")]
