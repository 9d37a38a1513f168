"""The import rules of docs/architecture.md, over the syntax trees of all modules."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MODULES = sorted(p for folder in ("pipeline", "operators", "tools") for p in (ROOT / folder).rglob("*.py"))
MOST_FILES = 20
"""Python files in one folder, `__init__.py` aside."""

ORDER = [
    # The dataflow engine. Each folder imports only those above it.
    "pipeline",
    "pipeline.api",
    "pipeline.system",
    "pipeline.settings",
    "pipeline.run_dir",
    "pipeline.dataflow",
    "pipeline.config",
    "pipeline.monitor",
    "pipeline.publish",
    "pipeline.results",
    "pipeline.run",
    "pipeline.dry_run",
    "pipeline.cli",
    "pipeline.__main__",
    # The work.
    "operators",
    "operators.settings",
    "operators.rows",
    "operators.prompts",
    "operators.engine",
    "operators.engine.backend",
    "operators.engine.sampling",
    "operators.engine.sequence",
    "operators.engine.scheduler",
    "operators.engine.strategies",
    "operators.engine.loop",
    "operators.constraints",
    "operators.llama",
    "operators.tuning",
    "operators.generation",
    "operators.scoring",
    "operators.estimate",
    "operators.sources",
    "operators.sinks",
    "operators.openai",
    "operators.*",
    # Nothing that a run imports.
    "tools",
]
OPERATORS_MAY_USE = ("pipeline", "pipeline.api", "pipeline.system")
MAY_USE_HYDRA = ("pipeline.config.", "pipeline.cli.")
STARTS_THREADS = {
    "pipeline/dataflow/executor.py",
    "pipeline/publish/uploader.py",
    "pipeline/run/on_finish.py",
    "pipeline/system/signals.py",
    "operators/engine/loop/threads.py",
    "operators/generation/store.py",
    "tools/bench/alternatives.py",
}
"""Locks are for everybody; a thread of its own, or a pool of them, is not. Clients of llama-server wait in a pool."""
PLAIN_ENGINE = ("operators/engine/sampling/", "operators/engine/scheduler/", "operators/engine/sequence/")
STDLIB_ONLY = ("tools/build/build.py", "tools/build/compilers.py", "tools/build/peers.py")
"""They run before anything is installed."""


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def module_of(path: Path) -> str:
    return name_of(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")


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


def place(module: str) -> int:
    """Position of `module` in ORDER: that of the longest entry which holds it."""
    holds = [entry for entry in ORDER if module == entry or module.startswith(f"{entry}.")]
    best = max(holds, key=len)
    if best == "operators" and module != best:  # an operator that a job can name
        best = "operators.*"
    return ORDER.index(best)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_go_one_way(path):
    here = place(module_of(path))
    ours = {name for name in imports(path) if name.split(".")[0] in ("pipeline", "operators", "tools")}
    assert not [name for name in ours if place(name) > here]


@pytest.mark.parametrize("path", in_folder("pipeline/"), ids=name_of)
def test_the_engine_knows_no_operator_and_no_llama(path):
    assert not packages(path) & {"operators", "tools", "jobs", "llama_cpp", "models"}


@pytest.mark.parametrize("path", [*in_folder("operators/"), *in_folder("tools/")], ids=name_of)
def test_operators_reach_only_the_contracts_and_the_system(path):
    used = {name for name in imports(path) if name.split(".")[0] == "pipeline"}
    assert not [name for name in used if ORDER[place(name)] not in OPERATORS_MAY_USE]


@pytest.mark.parametrize("folder", sorted({p.parent for p in MODULES}), ids=name_of)
def test_no_folder_is_a_heap(folder):
    assert len([p for p in folder.glob("*.py") if p.name != "__init__.py"]) <= MOST_FILES


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_hydra_stays_at_the_door(path):
    assert not packages(path) & {"hydra", "omegaconf"} or module_of(path).startswith(MAY_USE_HYDRA)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_llama_cpp_stays_in_its_folder(path):
    assert "llama_cpp" not in packages(path) or name_of(path).startswith(("operators/llama/", "tools/"))


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_llguidance_stays_in_its_folder(path):
    assert "llguidance" not in packages(path) or name_of(path).startswith(("operators/constraints/", "tools/"))


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_matplotlib_is_imported_by_what_draws_and_only_when_it_does(path):
    assert "matplotlib" not in packages(path) or name_of(path) == "pipeline/results/report/drawing.py"
    statements = ast.parse(path.read_text(encoding="utf-8")).body
    at_the_top = [node for node in statements if isinstance(node, ast.Import | ast.ImportFrom)]
    assert not [node for node in at_the_top if "matplotlib" in ast.unparse(node)]


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_threads_stay_where_they_belong(path):
    if name_of(path) not in STARTS_THREADS:
        assert "Thread(" not in path.read_text(encoding="utf-8")
        assert not packages(path) & {"concurrent", "multiprocessing"}


@pytest.mark.parametrize("path", [p for p in MODULES if name_of(p).startswith(PLAIN_ENGINE)], ids=name_of)
def test_the_engines_parts_are_plain_python_and_numpy(path):
    foreign = packages(path) - set(sys.stdlib_module_names) - {"numpy", "operators", "pipeline"}
    assert not foreign


@pytest.mark.parametrize("name", STDLIB_ONLY)
def test_the_build_needs_nothing_installed(name):
    assert not packages(ROOT / name) - set(sys.stdlib_module_names) - {"tools"}


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_are_absolute(path):
    assert not [name for name in imports(path) if name.startswith(".")]
