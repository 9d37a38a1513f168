"""The fingerprint of a job: everything that the bytes of data/ depend on, as a flat mapping. A resume compares it.

It has the settings that operators are given, and the source of user code. The content of a file counts and not its
place: fields named `path` are left out, and an operator that reads a file adds its content in `fingerprint()`.
Credentials are left out too, and keys that say so of themselves (`pipeline.api.keys.deciding_fields`).
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import json
import os
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pipeline import OURS
from pipeline.api.keys import deciding_fields
from pipeline.api.user_code import planning
from pipeline.config.annotations import allowed, hints_of, marked
from pipeline.config.session_code import session_code
from pipeline.dataflow.graph import Graph, Node
from pipeline.settings import GROUPS, JobSettings
from pipeline.system.redaction import comparable

ABSENT = "(absent)"
RULES = 4
"""The version of how rows are read, prompts made and answers checked. A change by which equal settings and files may
give other rows makes it one more; a run that was begun under other rules is refused, since it would mix two."""
_parser_free = threading.Lock()


def fingerprint_of(settings: JobSettings, graph: Graph) -> dict[str, Any]:
    """Return the fingerprint of a job.

    A config group that is passed to a node as a whole has the key that users type (`sampling.temperature`); everything
    else is below its node (`nodes.render.op.template`).
    """
    top: dict[str, Any] = {"seed": settings.seed, "chunk_rows": settings.chunk_rows}
    fingerprint = {**top, "rules": RULES}
    if settings.append:
        fingerprint |= {"append": True, "append_changed": settings.append_changed}
    if (target := settings.target).accepted_rows is not None:
        fingerprint |= flat("target", dataclasses.replace(target, chunk_rows=target.rows_of_chunk(settings.chunk_rows)))
    groups = [(name, getattr(settings, name)) for name in GROUPS if getattr(settings, name) is not None]
    for name, node in settings.nodes.items():
        hints = hints_of(type(graph.nodes[name].op))
        for key, value in node.op.items():
            if key in graph.nodes[name].op.told_by_fingerprint or (key in top and value == top[key]):
                continue  # already in `top`, or told with the files that it names
            group = next((g for g, options in groups if dataclasses.is_dataclass(value) and options == value), None)
            counts = value if group else _counting(value, hints.get(key), groups)
            fingerprint.update(flat(group or f"nodes.{name}.op.{key}", counts, grows=settings.append))
        fingerprint[f"nodes.{name}.inputs"] = list(node.inputs)
        fingerprint[f"nodes.{name}.on_error"] = node.on_error
        fingerprint.update(content_of(name, graph.nodes[name]))
    return dict(sorted(comparable(fingerprint, marked(settings.nodes)).items()))


def _counting(value: Any, hint: Any, groups: Sequence[tuple[str, Any]]) -> Any:
    """Return a mapping of which an operator makes settings of its own, and not those of a group, without the keys that
    change no byte of data/; any other value as it is."""
    kind = None if hint is None else allowed(hint).settings
    if kind is None or not isinstance(value, Mapping) or any(isinstance(options, kind) for _, options in groups):
        return value
    counts = {each.name: each.metadata.get("fingerprint") for each in dataclasses.fields(kind)}
    apart = {name for name, fact in counts.items() if fact is False or callable(fact)}
    return {key: inside for key, inside in value.items() if key not in apart}


def content_of(name: str, node: Node) -> dict[str, Any]:
    """Return the part of a fingerprint that files decide: the code of the node `name`, and what its operator says, such
    as the hash of its model."""
    hashes: dict[str, str] = {}
    for target in node.code:
        of_session, modules = session_code(target)
        named = target.replace(":", ".").rpartition(".")[0]
        hashes |= of_session | code_of(named)
        hashes |= {key: sha256 for module in modules for key, sha256 in code_of(module, with_installed=False).items()}
    code = {f"nodes.{name}.code.{key}": sha256 for key, sha256 in hashes.items()}
    with planning(name, "fingerprint"):
        values = dict(node.op.fingerprint())
    return code | {f"nodes.{name}.{key}": _plain(value) for key, value in values.items()}


def differences(
    before: Mapping[str, Any], now: Mapping[str, Any], *, typed: Callable[[str], str] = lambda key: key
) -> list[str]:
    """Return `key: old -> new` for every key that differs, and one line each for nodes that came and that went. `typed`
    returns a key as users type it."""
    keys = sorted(k for k in {**before, **now} if before.get(k, ABSENT) != now.get(k, ABSENT))
    came, went = _nodes(now) - _nodes(before), _nodes(before) - _nodes(now)
    lines = [
        f"nodes that are {word}: {', '.join(sorted(them))}" for word, them in (("new", came), ("gone", went)) if them
    ]
    of_both = [k for k in keys if _node(k) not in came | went]
    each = (_difference(typed(k), before.get(k, ABSENT), now.get(k, ABSENT)) for k in of_both)
    return [*lines, *dict.fromkeys(each)]  # a key of a step may be one of several nodes


def _nodes(values: Mapping[str, Any]) -> set[str]:
    return {node for key in values if (node := _node(key))}


def _node(key: str) -> str:
    """Return the name of the node that a key is about; an empty text for none."""
    return key.removeprefix(".").removeprefix("nodes.").partition(".")[0] if ".nodes." in f".{key}" else ""


def _difference(key: str, before: object, now: object) -> str:
    node, is_code, module = key.removeprefix("nodes.").partition(".code.")
    if is_code and ABSENT not in (before, now):  # do not print two hashes
        if ":" in module:
            return f"{module.partition(':')[2]} of {module.partition(':')[0]}, code of the node '{node}', has changed"
        return f"{module.replace('.', '/')}.py, code of the node '{node}', has changed"
    if key == "rules":
        return f"this version reads rows, makes prompts or checks answers by other rules ({before} -> {now})"
    return f"{key}: {_shown(before)} -> {_shown(now)}"


def flat(key: str, value: object, *, grows: bool = False) -> Iterator[tuple[str, Any]]:
    """Yield the plain values inside `value`, with dotted keys below `key`, without those that are not fingerprinted.
    `grows`: the input may (`append`); keys that say how it is read do not count, since its columns are compared."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field, given in deciding_fields(value):
            if field.name != "path" and not (grows and field.metadata.get("reads")):
                yield from flat(f"{key}.{field.name}", given, grows=grows)
    elif isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from flat(f"{key}.{name}", inner, grows=grows)
    else:
        yield key, _plain(value)


def _plain(value: object) -> Any:
    """Return `value` after a round trip through JSON, so that a stored fingerprint compares equal to a new one."""
    return json.loads(json.dumps(value, default=str))


def _shown(value: object) -> str:
    return ABSENT if value == ABSENT else json.dumps(value, ensure_ascii=False)


def code_of(module: str, *, with_installed: bool = True) -> dict[str, str]:
    """Return the SHA-256 of the source of `module`, and of the modules that it imports, by name; empty for modules of
    this project and for those without Python source.

    Imports are followed in the source files, not in sys.modules, so that they do not depend on what else the process
    has imported. Only modules in the same import root count, neither installed packages nor this project.
    """
    module, file = _place(module)
    if module.partition(".")[0] in OURS or file is None or not file.endswith(".py"):
        return {}
    depth = module.count(".") + (Path(file).name == "__init__.py")
    root = Path(file).absolute().parents[depth]  # its entry of sys.path
    is_installed = str(root) in {sysconfig.get_path(kind) for kind in ("purelib", "platlib", "stdlib")}
    if is_installed and not with_installed:
        return {}
    only = module.partition(".")[0] if is_installed else None
    hashes: dict[str, str] = {}
    waiting = [(module, Path(file))]
    while waiting:
        name, path = waiting.pop()
        if name not in hashes:
            source = path.read_bytes()
            hashes[name] = hashlib.sha256(source).hexdigest()
            imports = _imports(source, name, is_package=path.name == "__init__.py")
            waiting += [pair for dotted in imports for pair in _files(root, dotted, only)]
    return dict(sorted(hashes.items()))


def _place(module: str) -> tuple[str, str | None]:
    """Return the name under which `module` is imported, which of `python -m package.module` is not __main__, and its
    file, without importing it."""
    loaded = sys.modules.get(module)
    try:
        spec = find_spec(module) if loaded is None else getattr(loaded, "__spec__", None)
    except (ImportError, ValueError):  # of a package that is not there; of `from . import name`
        spec = None
    name = module if spec is None else spec.name
    return name, getattr(loaded, "__file__", None if loaded is not None or spec is None else spec.origin)


@lru_cache(maxsize=256)
def _imports(source: bytes, module: str, *, is_package: bool) -> Sequence[str]:
    """Return the dotted names that a module's source imports; `from a import b` as a.b, since b may be a module. It is
    asked several times for each run, and again for each job of a sweep."""
    with _parser_free:  # Python 3.11's counts its depth for all threads together, and then raises SystemError
        tree = ast.parse(source)
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = module.split(".")
            package = parts[: len(parts) - node.level + is_package] if node.level else []
            base = [*package, *([node.module] if node.module else [])]
            names += (".".join([*base, alias.name]) for alias in node.names)
    return names


def _files(root: Path, dotted: str, only: str | None) -> Iterator[tuple[str, Path]]:
    """Yield name and file of the modules below `root` that importing `dotted` runs: its packages and itself."""
    parts = dotted.split(".")
    if parts[0] in OURS or only not in (None, parts[0]):
        return
    place = str(root)
    for length, part in enumerate(parts, 1):
        place = os.path.join(place, part)  # noqa: PTH118 - asked for every import of a job's code at each run
        for path in (f"{place}.py", f"{place}/__init__.py"):
            if os.path.isfile(path):  # noqa: PTH113
                yield ".".join(parts[:length]), Path(path)
        if not os.path.isdir(place):  # noqa: PTH112 - nothing can be below it
            return
