"""Identity of a worker: build, model and bits that all machines of a run share, so that equal rows get equal bytes."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from pipeline import PACKAGES
from pipeline.api.errors import ConfigError
from pipeline.api.protocols import UsesModel
from pipeline.config.fingerprint import content_of
from pipeline.dataflow.graph import Graph
from pipeline.dataflow.node_failure import running
from pipeline.run_dir.state import RunState

CODE = "the program's code"


class WorkerIdentity(NamedTuple):
    """What a worker says of itself when it is open; all of it but `host` has to be the same in all workers.

    Args:
        host: the machine, named in messages.
        program: see `program`; another one may go on with the run in a later attempt.
        nodes: see `identities_of`.
    """

    host: str
    program: Mapping[str, str]
    nodes: Mapping[str, str]


def identities_of(graph: Graph) -> dict[str, str]:
    """Return the identities of open operators, by what it is and of which node: in this form a run keeps them."""
    found: dict[str, str] = {}
    for name, op in graph.with_role(UsesModel).items():
        with running(name, Path()):
            own = op.identity()
            found |= {f"{what} of node '{name}'": text for what, text in (own.in_words() if own else {}).items()}
    return found


def contents_of(graph: Graph, nodes: Iterable[str]) -> dict[str, str]:
    """Return hashes of this program, and of the code and the model files of nodes, by what they are of."""
    contents = {key: str(value) for name in nodes for key, value in content_of(name, graph.nodes[name]).items()}
    return {CODE: program()[CODE]} | contents


@cache
def program() -> dict[str, str]:
    """Return the identity of this program: its code, and the packages that compute."""
    code = hashlib.blake2b(digest_size=8)
    for package in ("pipeline", "operators"):
        for path in sorted((PACKAGES / package).rglob("*.py")):
            code.update(path.relative_to(PACKAGES).as_posix().encode() + path.read_bytes())
    packages = {name: metadata.version(name) for name in ("llama-cpp-python", "numpy")}
    return {"the machine": platform.machine(), CODE: code.hexdigest(), **packages}


def check_equal(one: str, theirs: Mapping[str, str], other: str, its: Mapping[str, str], remedy: str) -> None:
    """Raise ConfigError if two identities differ in something that both have. `one`, `other`: whose they are."""
    for what in sorted(theirs.keys() & its.keys()):
        if theirs[what] != its[what]:
            raise ConfigError(
                f"{one} and {other} differ in {what}: {theirs[what]} and {its[what]}. Equal rows could get other bytes"
                f" from them. {remedy}"
            )


def keep_or_compare(state: RunState, here: Mapping[str, str]) -> None:
    """Keep the identities of a run's nodes with it or, if an earlier attempt has, compare them. Raises ConfigError if
    this machine has another build or device than the one that began the run, or computes other bits."""
    kept = state.identity
    others = {what: value for what, value in here.items() if kept.get(what, value) != value}
    if others:
        there = "; ".join(f"{what}: {kept[what]} then, {value} now" for what, value in others.items())
        raise ConfigError(
            "this machine does not compute as the one that began the run, so its rows could get other texts"
            f" ({there}). Go on with a machine and a build like that one, take what this one computes with"
            " other_bits=allow, or begin anew with overwrite=true"
        )
    if here and not kept:
        state.note(identity=here)
