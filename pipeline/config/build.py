"""Build the operators of a job from their `_target_` strings, and the graph from the operators."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import inspect
import keyword
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.api.by_batch import OnError
from pipeline.api.errors import ConfigError, GraphError, did_you_mean
from pipeline.api.identity import PLANNED
from pipeline.api.protocols import Operator
from pipeline.api.removed import removed
from pipeline.api.user_code import spelt, user_code
from pipeline.config.annotations import allowed, hints_of, unquoted
from pipeline.config.fingerprint import fingerprint_of
from pipeline.dataflow.graph import Graph, Node
from pipeline.dataflow.new_rows import appending, check_sinks
from pipeline.dataflow.target import with_target
from pipeline.settings import AGAIN, JobSettings, NodeSettings

TARGET = "_target_"


@dataclass(frozen=True)
class CheckedJob:
    """A checked job, ready to run. `directory`: absolute path of the results."""

    settings: JobSettings
    graph: Graph
    fingerprint: dict[str, Any]
    directory: Path

    @classmethod
    def of(cls, settings: JobSettings, graph: Graph) -> CheckedJob:
        return cls(settings, graph, fingerprint_of(settings, graph), settings.directory.absolute())


def build_graph(settings: JobSettings) -> Graph:
    """Build and check the graph of a job. Loads no model and reads no more data than a source's schema needs. Models
    are planned, and loaded by this process, as the job's workers load them. Raises GraphError or another ConfigError
    that names the node."""
    target, cluster = settings.target, settings.cluster
    PLANNED.gpus = cluster.gpus if cluster is not None and cluster.pool == "processes" else 0.0
    chunk_rows = settings.chunk_rows if target.accepted_rows is None else target.rows_of_chunk(settings.chunk_rows)
    try:
        nodes = {name: build_node(name, node) for name, node in settings.nodes.items()}
        if settings.append:
            id_column = None if settings.data is None else settings.data.id_column
            nodes = appending(nodes, chunk_rows, id_column, again=settings.append_changed == AGAIN)
        graph = Graph(nodes)  # before a target: errors are to speak of the graph as the user wrote it
        check_sinks(graph)
    except ConfigError as error:
        node = settings.nodes.get(error.node or "")
        if isinstance(node, NodeSettings) and node.step is not None:
            error.args = (f"step '{node.step}', {error}",)
        raise
    return graph if target.accepted_rows is None else with_target(nodes, target, chunk_rows)


def load_object(target: str) -> Any:
    """Import the object `package.module.Name` or `package.module:Name`; raises ConfigError."""
    module_name, _, name = target.replace(":", ".").rpartition(".")
    if not module_name:
        ours = load_object("operators:targets")()
        meant = next((f"; did you mean {path}?" for path in ours if path.endswith(f".{name}")), "")
        raise ConfigError(f"'{target}' names no module; write package.module.Class{meant}")
    try:
        with user_code(lambda error: ConfigError(f"cannot import '{target}': {spelt(error)}"), ModuleNotFoundError):
            module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or module_name
        hint = "; a module beside the job file or on PYTHONPATH is found" if module_name.startswith(missing) else ""
        raise ConfigError(f"cannot import '{target}': there is no module '{missing}'{hint}") from error
    if not hasattr(module, name):
        near = difflib.get_close_matches(name, dir(module), 1)
        where = f" ({module.__file__})" if getattr(module, "__file__", None) else ""
        hint = f"; did you mean '{near[0]}'?" if near else "; a file beside the job comes after all others of its name"
        if module_name == "__main__":
            hint = "; it was one of a notebook or a script, which alone can go on with this run; put it into a module"
        raise ConfigError(f"module '{module_name}'{where} has no '{name}'{hint}")
    return getattr(module, name)


def convert(key: str, value: object, hint: object) -> Any:
    """Convert `value` to the type `hint`: a mapping to a dataclass, recursively, and a `module.name` to a function. Any
    other value is checked and returned as it is. Raises ConfigError, which names `key`, if it does not fit."""
    allows = allowed(hint)
    if allows.is_function and isinstance(value, str):
        return _function(key, value)
    if allows.settings is None or not isinstance(value, dict):
        if not allows.fits(value):
            raise ConfigError(f"{key} is {value!r}, and must be {allows.words}{unquoted(value, allows)}")
        return value
    wanted = kind_of(allows.settings, value)
    names = [f.name for f in dataclasses.fields(wanted)]
    if unknown := [k for k in value if k not in names]:
        if gone := removed(f"{key.rpartition('.')[2]}.{unknown[0]}"):
            raise ConfigError(gone)
        near = did_you_mean(str(unknown[0]), names) or f"; its keys are {', '.join(names)}"
        raise ConfigError(f"{key} has no key '{unknown[0]}'{near}")
    hints = hints_of(wanted)
    return _call(key, wanted, {k: convert(f"{key}.{k}", v, hints.get(k, Any)) for k, v in value.items()})


def kind_of(settings: type[Any], values: Mapping[str, Any]) -> type[Any]:
    """Return the class of settings for these keys: `settings`, or the one that its `kind_of` chooses."""
    if not hasattr(settings, "kind_of"):
        return settings
    with user_code(lambda error: ConfigError(f"{settings.__name__}.kind_of: {spelt(error)}"), ConfigError):
        kind: type[Any] = settings.kind_of(values)
        return kind


def build_node(name: str, settings: object) -> Node:
    """Build a node of a job, without planning it. Raises GraphError."""
    try:
        # An interpolation (${data}) may yield any value: OmegaConf does not check its type.
        if not isinstance(settings, NodeSettings):
            raise ConfigError(f"is {settings!r}, and must be a mapping with op and inputs")
        operator, code = _operator(settings.op)
    except ConfigError as error:
        raise GraphError(name, str(error)) from error
    operator.on_error = on_error = OnError(settings.on_error)
    kept_as = f"{settings.step or name}_error" if on_error is OnError.KEEP else None
    return Node(operator, tuple(settings.inputs), settings.capacity_rows, code, settings.step, kept_as)


def _operator(op: object) -> tuple[Operator, tuple[str, ...]]:
    """Return the operator, and the names of its class and of the functions among its arguments."""
    if not isinstance(op, Mapping):
        raise ConfigError(f"op is {op!r}, and must be a mapping with {TARGET}")
    target = op.get(TARGET)
    if not isinstance(target, str):
        raise ConfigError(f"op has no {TARGET}; write {TARGET}: package.module.Class")
    factory = load_object(target)
    if not callable(factory):
        raise ConfigError(f"'{target}' is a {type(factory).__name__}, not a class")
    arguments = {f"{key}_" if keyword.iskeyword(key) else key: value for key, value in op.items() if key != TARGET}
    _check_names(target, factory, arguments)
    hints = hints_of(factory)
    converted = {key: convert(key, value, hints.get(key, Any)) for key, value in arguments.items()}
    if missing := getattr(factory, "__abstractmethods__", None):
        raise ConfigError(f"'{target}' has no {' and no '.join(sorted(missing))}, which a class that it inherits needs")
    operator = _call(target, factory, converted)
    has_work = isinstance(operator, Operator) and (
        type(operator).process is not Operator.process or type(operator).run is not Operator.run
    )
    if not isinstance(operator, Operator) or not has_work or not hasattr(operator, "plan"):
        raise ConfigError(
            f"'{target}' is no operator: it must inherit pipeline.api.Operator and have plan, and process or run"
        )
    functions = [v for k, v in arguments.items() if isinstance(v, str) and allowed(hints.get(k)).is_function]
    return operator, (target, *functions)


def _check_names(target: str, factory: Callable[..., object], arguments: Mapping[str, Any]) -> None:
    """Refuse unknown and missing arguments of the constructor."""
    try:
        signature = inspect.signature(factory)
    except ValueError as error:  # some built-in types have none
        raise ConfigError(f"'{target}' is no operator") from error
    try:
        signature.bind(**arguments)
    except TypeError as error:
        accepted = ", ".join(str(p) for p in signature.parameters.values()) or "none"
        unknown = next((a for a in arguments if a not in signature.parameters), None)
        # A misspelt name is both unknown and missing, and Python reports what is missing first.
        hint = did_you_mean(unknown or "", signature.parameters)
        wrong = error if unknown is None else f"there is no argument '{unknown}'{hint}"
        raise ConfigError(f"{target}: {wrong}; it accepts: {accepted}") from error


def _function(key: str, target: str) -> object:
    try:
        found = load_object(target)
    except ConfigError as error:
        raise ConfigError(f"{key}: {error}") from error
    if not callable(found):
        raise ConfigError(f"{key}: '{target}' is a {type(found).__name__}, not a function")
    return found


def _call(what: str, factory: Callable[..., object], arguments: Mapping[str, Any]) -> object:
    # A constructor only checks and stores its arguments, so these are at fault.
    with user_code(lambda error: ConfigError(f"{what} refuses its arguments: {spelt(error)}"), ConfigError):
        return factory(**arguments)
