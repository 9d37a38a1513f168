"""Hashes of user code: the source files of a module that a job names, for the fingerprint.

Imports are followed in the source files, not in sys.modules, so that they do not depend on what else the process has
imported. Only modules in the same import root count, neither installed packages nor this project.
"""

from __future__ import annotations

import ast
import hashlib
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from pipeline import OURS


def code_of(module: str) -> dict[str, str]:
    """Return the SHA-256 of the source of `module`, which is loaded, and of the modules that it imports, by name.

    Empty for modules of this project and for those without Python source.
    """
    file = getattr(sys.modules.get(module), "__file__", None)
    if module.partition(".")[0] in OURS or file is None or not file.endswith(".py"):
        return {}
    depth = module.count(".") + (Path(file).name == "__init__.py")
    root = Path(file).absolute().parents[depth]  # its entry of sys.path
    is_installed = str(root) in {sysconfig.get_path(kind) for kind in ("purelib", "platlib", "stdlib")}
    only = module.partition(".")[0] if is_installed else None
    found: dict[str, str] = {}
    waiting = [(module, Path(file))]
    while waiting:
        name, path = waiting.pop()
        if name not in found:
            source = path.read_bytes()
            found[name] = hashlib.sha256(source).hexdigest()
            imports = _imports(ast.parse(source), name, is_package=path.name == "__init__.py")
            waiting += [pair for dotted in imports for pair in _files(root, dotted, only)]
    return dict(sorted(found.items()))


def _imports(tree: ast.AST, module: str, *, is_package: bool) -> Iterator[str]:
    """Yield the dotted names that `module` imports; `from a import b` as a.b, since b may be a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = module.split(".")
            package = parts[: len(parts) - node.level + is_package] if node.level else []
            base = [*package, *([node.module] if node.module else [])]
            yield from (".".join([*base, alias.name]) for alias in node.names)


def _files(root: Path, dotted: str, only: str | None) -> Iterator[tuple[str, Path]]:
    """Yield name and file of the modules below `root` that importing `dotted` runs: its packages and itself."""
    parts = dotted.split(".")
    if parts[0] in OURS or only not in (None, parts[0]):
        return
    for length in range(1, len(parts) + 1):
        place = root.joinpath(*parts[:length])
        for path in (place.with_name(f"{place.name}.py"), place / "__init__.py"):
            if path.is_file():
                yield ".".join(parts[:length]), path
