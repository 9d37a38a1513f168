"""The code of functions and classes that no file holds: of a notebook, a console, `python -c`."""

from __future__ import annotations

import copyreg
import dis
import functools
import hashlib
import sys
import types
from collections.abc import Iterator
from operator import attrgetter
from typing import Any

_OF_EVERY_CLASS = {"__dict__", "__weakref__", "__doc__", "__module__", "__qualname__", "__annotations__", "_abc_impl"}
_OF_EVERY_CLASS |= {"__firstlineno__", "__static_attributes__", "__annotate_func__", "__annotations_cache__"}  # 3.13
_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), type(NotImplemented))


def session_code(target: str) -> tuple[dict[str, str], set[str]]:
    """Return the SHA-256 of the function or class `module.name` and of the globals that it uses, each by `module:name`,
    and the modules with files that they use something of. Both are empty for an object of a file.

    A function counts with its bytecode, constants, defaults and closure, a class with its members, any other object
    with what pickle would keep of it. What cannot be pickled counts with its type.
    """
    module, _, name = target.replace(":", ".").rpartition(".")
    scope: dict[str, Any] = vars(sys.modules[module]) if module in sys.modules else {}
    hashes: dict[str, str] = {}
    modules: set[str] = set()
    if name not in scope or _has_file(scope) or _file_of(scope[name]) is not None:
        return hashes, modules
    waiting = [(scope, name)]
    while waiting:
        scope, name = waiting.pop()
        key = f"{scope.get('__name__')}:{name}"
        if key not in hashes:
            content = _ContentHash()
            try:
                hashes[key] = content.of(scope[name])
            except RecursionError:  # pickle would not keep it either
                hashes[key] = _hash("object", type(scope[name]).__qualname__)
            waiting += content.used
            modules |= content.modules
    return hashes, modules


def _has_file(scope: dict[str, Any]) -> bool:
    """Return True for the globals of a module whose file has all that they are."""
    return scope.get("__file__") is not None and scope.get("__name__") not in ("__main__", None)


def _file_of(value: Any) -> str | None:
    """Return the file of the module in which a function or a class is found by its name; None if there is none. In
    `__main__` a console may have defined anew what the script had."""
    module = sys.modules.get(getattr(value, "__module__", None) or "")
    name = getattr(value, "__qualname__", None)
    if module is None or not isinstance(name, str):
        return None
    try:
        if attrgetter(name)(module) is not value:
            return None
    except AttributeError:
        return None
    if module.__name__ in sys.builtin_module_names:
        return module.__name__
    file: str | None = getattr(module, "__file__", None)
    members = vars(value).values() if isinstance(value, type) else (value,)
    files = {member.__code__.co_filename for member in members if isinstance(member, types.FunctionType)}
    return None if module.__name__ == "__main__" and files and file not in files else file


class _ContentHash:
    """Hashes of values with all that is inside them, the same in every process.

    Attributes:
        used: the globals that the functions in them use, as scope and name.
        modules: the modules with files that hold functions and classes in them.
    """

    def __init__(self) -> None:
        self.used: list[tuple[dict[str, Any], str]] = []
        self.modules: set[str] = set()
        self._known: dict[int, tuple[str, object]] = {}  # the objects too, lest another one gets the id of one
        self._around: list[object] = []

    def of(self, value: Any) -> str:
        """Return the hash of a value."""
        if type(value) in _PLAIN:
            return _hash(type(value).__name__, repr(value))
        if id(value) in self._known:
            return self._known[id(value)][0]
        if around := [level for level, other in enumerate(self._around) if other is value]:
            return _hash("around", len(self._around) - around[0])
        self._around.append(value)
        digest = _hash(*self._parts(value))
        self._around.pop()
        self._known[id(value)] = (digest, value)
        return digest

    def _parts(self, value: Any) -> Iterator[object]:
        kind = type(value)
        yield kind.__qualname__
        if kind in (list, tuple):
            yield from map(self.of, value)
        elif kind in (set, frozenset):
            yield from sorted(map(self.of, value))
        elif kind is dict:
            yield from (self.of(part) for item in value.items() for part in item)
        elif isinstance(value, types.ModuleType):
            self.modules.add(value.__name__)
            yield value.__name__
        elif isinstance(value, types.CodeType):
            yield from (value.co_argcount, value.co_posonlyargcount, value.co_kwonlyargcount, value.co_flags)
            yield from map(self.of, (value.co_code, value.co_exceptiontable, value.co_names, value.co_varnames))
            yield from map(self.of, (value.co_freevars, value.co_cellvars, value.co_consts))
        elif isinstance(value, types.FunctionType | type) and _file_of(value) is not None:
            self.modules.add(value.__module__)
            yield from (value.__module__, value.__qualname__)
        elif isinstance(value, types.FunctionType):
            self._find_globals(value)
            yield from map(self.of, (value.__code__, value.__defaults__, value.__kwdefaults__, vars(value)))
            yield from (self.of(inside) for cell in value.__closure__ or () for inside in _content(cell))
        elif isinstance(value, type):
            members = {name: vars(value)[name] for name in sorted(vars(value)) if name not in _OF_EVERY_CLASS}
            yield from map(self.of, (value.__name__, value.__bases__, members))
        elif isinstance(value, classmethod | staticmethod):
            yield self.of(value.__func__)
        elif isinstance(value, property):
            yield from map(self.of, (value.fget, value.fset, value.fdel))
        elif isinstance(value, functools._lru_cache_wrapper):
            yield self.of(value.__wrapped__)
        else:
            yield kind.__module__
            yield from map(self.of, _pickled(value))

    def _find_globals(self, function: types.FunctionType) -> None:
        scope = function.__globals__
        if _has_file(scope):
            self.modules.add(scope["__name__"])
            return
        for code in _with_inner(function.__code__):
            for step in dis.get_instructions(code):
                if step.opname in ("LOAD_GLOBAL", "LOAD_NAME") and step.argval in scope:
                    self.used.append((scope, step.argval))
                elif step.opname == "IMPORT_NAME":
                    self.modules.add(step.argval)


def _pickled(value: Any) -> list[Any]:
    """Return what pickle would keep of an object; nothing of one that is not made to be pickled, such as a lock."""
    try:
        reduce = copyreg.dispatch_table.get(type(value))
        reduced = reduce(value) if reduce else value.__reduce_ex__(4)
    except Exception:  # whatever its class raises
        return []
    parts = reduced if isinstance(reduced, tuple) else (reduced,)
    return [list(part) if isinstance(part, Iterator) else part for part in parts]


def _hash(*parts: object) -> str:
    digest = hashlib.sha256()
    for part in parts:
        text = str(part).encode("utf-8", "surrogatepass")
        digest.update(f"{len(text)}:".encode() + text)
    return digest.hexdigest()


def _content(cell: types.CellType) -> Iterator[Any]:
    """Yield what a cell of a closure holds: nothing if it is empty."""
    try:
        yield cell.cell_contents
    except ValueError:
        return


def _with_inner(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield the code of a function and of those that it defines."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _with_inner(constant)
