"""Identity of a worker: build, model and bits that all machines of a run share, so that equal rows get equal bytes."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path

from pipeline import PACKAGES
from pipeline.api.errors import ConfigError
from pipeline.config.fingerprint import content_of
from pipeline.dataflow.graph import Graph
from pipeline.dataflow.node_failure import running

CODE = "the program's code"
HOST = "host"
"""Key of the machine in what a worker says when it is open: not compared, but named in messages."""
OF_A_NODE = " of node '"
"""In the keys that are kept with a run; the others, of the program, may differ in a later attempt."""
DIFFER = "{one} and {other} differ in {what}: {theirs} and {its}. Equal rows could get other bytes from them. {remedy}"


def identity_of(graph: Graph, nodes: Iterable[str]) -> dict[str, str]:
    """Return the identity of open operators, by what it is."""
    found: dict[str, str] = {}
    for name in nodes:
        with running(name, Path()):
            own = graph.nodes[name].op.identity()
            found |= {f"{what}{OF_A_NODE}{name}'": value for what, value in own.items()}
    return found


def of_machine(identity: Mapping[str, str]) -> dict[str, str]:
    """Return the part of an identity that every attempt of a run shares: that of its nodes."""
    return {what: value for what, value in identity.items() if OF_A_NODE in what}


def contents_of(graph: Graph, nodes: Iterable[str]) -> dict[str, str]:
    """Return hashes of the code and the model files of nodes, by what they are of."""
    return {key: str(value) for name in nodes for key, value in content_of(name, graph.nodes[name]).items()}


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
                DIFFER.format(one=one, other=other, what=what, theirs=theirs[what], its=its[what], remedy=remedy)
            )


def check_here(graph: Graph, kept: Mapping[str, str]) -> dict[str, str]:
    """Return the identity of this machine.

    Args:
        graph: with all operators open.
        kept: the identity of the machine that began the run; empty if this one does.

    Raises:
        ConfigError: it has another build or device than the one that began the run, or computes other bits.
    """
    here = of_machine(identity_of(graph, graph.order))
    others = {what: value for what, value in here.items() if kept.get(what, value) != value}
    if others:
        there = "; ".join(f"{what}: {kept[what]} then, {value} now" for what, value in others.items())
        raise ConfigError(
            "this machine does not compute as the one that began the run, so its rows could get other texts"
            f" ({there}). Go on with a machine and a build like that one, take what this one computes with"
            " other_bits=allow, or begin anew with overwrite=true"
        )
    return here
