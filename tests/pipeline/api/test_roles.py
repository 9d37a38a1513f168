"""What the engine may ask of an operator is in its base class or in a role, and no hook is ignored in silence."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import pipeline.api
from pipeline.api import Operator, Sink, Source
from pipeline.api.errors import ConfigError, GraphError
from pipeline.api.groups import FIELDS, check_fields
from pipeline.api.protocols import BaseOperator
from pipeline.api.roles import ROLES, hooks_of
from pipeline.config.build import build_graph
from pipeline.config.keys import schemas
from pipeline.settings import JobSettings, NodeSettings
from tests.pipeline.job_ops import Numbers, Parquet, Square

HOOKS = [(role, hook) for role in ROLES for hook in hooks_of(role)]
KINDS: dict[str, type[Operator]] = {"numbers": Numbers, "square": Square, "write": Parquet}
"""Of a job of three nodes; Square and Parquet have no role."""


def composed(kinds: dict[str, Any]) -> None:
    """Build the graph of a job with these classes."""
    globals().update(kinds)
    ops = {name: {"_target_": f"{__name__}.{name}"} for name in kinds}
    ops["numbers"]["rows"] = 5  # type: ignore[assignment]
    before = dict(zip([*kinds][1:], kinds, strict=False))
    build_graph(JobSettings(nodes={name: NodeSettings(op, before.get(name, [])) for name, op in ops.items()}))


def with_methods(base: type, *roles: type, **hooks: Any) -> type:
    """A class `Mine` with the required methods of the roles, and `hooks`."""
    required = {name: lambda self, *given: b"" for role in roles for name in getattr(role, "__abstractmethods__", ())}
    return type("Mine", (base, *roles), {**required, **hooks})


@pytest.mark.parametrize("on_instance", [False, True], ids=["in the class", "set by the constructor"])
@pytest.mark.parametrize(("role", "hook"), HOOKS, ids=lambda given: given if isinstance(given, str) else given.__name__)
def test_a_hook_without_its_role_is_refused_with_class_hook_and_role(role, hook, on_instance):
    """Whatever has it: a method, a value, a class that another one inherits."""

    def constructor(self: Any, *given: Any, **named: Any) -> None:
        base.__init__(self, *given, **named)
        setattr(self, hook, ("a value",))

    for node, base in KINDS.items():
        if issubclass(base, role):
            continue
        composed(KINDS)
        mine = with_methods(base, **({"__init__": constructor} if on_instance else {hook: lambda self, *given: None}))
        for kind in (mine, type("Mine", (mine,), {})):
            said = rf"^node '{node}'.*Mine has {hook}: .*pipeline\.api\.{role.__name__},"
            with pytest.raises(GraphError, match=said):
                composed(KINDS | {node: kind})


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.__name__)
def test_a_hook_with_its_role_is_taken_and_a_role_without_its_method_is_refused(role):
    kind = {Source: "numbers", Sink: "write"}.get(role, "square")
    roles = () if issubclass(KINDS[kind], role) else (role,)
    composed(KINDS | {kind: with_methods(KINDS[kind], *roles)})
    for method in getattr(role, "__abstractmethods__", ()):
        lacks = type("Lacks", (KINDS[kind], *roles), {method: vars(role)[method]})
        with pytest.raises(GraphError, match=rf"has no .*{method}"):
            composed(KINDS | {kind: lacks})


def test_a_role_of_the_wrong_end_of_the_graph_is_refused():
    with pytest.raises(GraphError, match=r"Mine is a pipeline\.api\.Sink, and its plan returns columns"):
        composed(KINDS | {"square": with_methods(Square, Sink)})
    with pytest.raises(GraphError, match=r"Mine is a pipeline\.api\.Source, and has inputs"):
        composed(KINDS | {"square": with_methods(Square, Source)})


def test_each_hook_is_of_one_role_and_none_is_of_every_operator():
    names = [hook for _, hook in HOOKS]
    assert len(set(names)) == len(names) == 19
    assert not set(names) & set(dir(Operator))
    assert BaseOperator is Operator


def test_what_an_author_needs_is_in_one_package_and_costs_nothing_until_it_is_used():
    code = "import sys, pipeline.api.errors as e; assert not {'pyarrow', 'numpy'} & {*sys.modules}"
    names = ", ".join(pipeline.api.__all__)
    code += f"; from pipeline.api import {names}; assert ConfigError is e.ConfigError"
    code += "; assert not {'polars', 'hydra', 'llama_cpp'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[3])
    with pytest.raises(AttributeError, match="has no attribute 'Operators'"):
        _ = pipeline.api.Operators  # type: ignore[attr-defined]  # a type checker finds it, too


@dataclass
class Half:
    """Settings with one of the fields that are read."""

    slots: int = 1


def test_settings_have_what_the_engine_reads_of_them():
    for group in FIELDS:
        for settings in schemas()[group].values():
            given = {"url": "http://127.0.0.1:8000/v1"} if settings.__name__ == "EndpointSettings" else {}
            check_fields(group, settings(**given))
    check_fields("runtime", None)
    with pytest.raises(ConfigError, match="class Half has no threads, deterministic, memory_limit_bytes, stall_timeo"):
        check_fields("runtime", Half())
    with pytest.raises(ConfigError, match=r"class Half has no format, publish, .*card_settings, and must have .*Outpu"):
        check_fields("output", Half())
