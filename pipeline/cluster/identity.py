"""Identity of a worker: build, model and bits that all machines of a run share, so that equal rows get equal bytes."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import metadata

from pipeline import PACKAGES
from pipeline.api.errors import ConfigError
from pipeline.dataflow.graph import Graph

OF_A_NODE = " of node '"
"""In the keys that are kept with a run; the others, of the program, may differ in a later attempt."""
DIFFER = (
    "{one} and {other} differ in {what}: {theirs} and {its}. Equal rows could get other bytes from them. {remedy}, or"
    " set cluster.mixed=allow with runtime.deterministic=false"
)


def identity_of(graph: Graph, nodes: Iterable[str]) -> dict[str, str]:
    """Return the identity of open operators, by what it is."""
    each = ((name, graph.nodes[name].op.identity()) for name in nodes)
    return {f"{what}{OF_A_NODE}{name}'": value for name, found in each for what, value in found.items()}


@cache
def program() -> dict[str, str]:
    """Return the identity of this program: its code, and the packages that compute."""
    code = hashlib.blake2b(digest_size=8)
    for package in ("pipeline", "operators"):
        for path in sorted((PACKAGES / package).rglob("*.py")):
            code.update(path.relative_to(PACKAGES).as_posix().encode() + path.read_bytes())
    packages = {name: metadata.version(name) for name in ("llama-cpp-python", "numpy")}
    return {"the machine": platform.machine(), "the program's code": code.hexdigest(), **packages}


def check_equal(one: str, theirs: Mapping[str, str], other: str, its: Mapping[str, str], remedy: str) -> None:
    """Raise ConfigError if two identities differ in something that both have. `one`, `other`: whose they are."""
    for what in sorted(theirs.keys() & its.keys()):
        if theirs[what] != its[what]:
            raise ConfigError(
                DIFFER.format(one=one, other=other, what=what, theirs=theirs[what], its=its[what], remedy=remedy)
            )


def check_here(graph: Graph, kept: Mapping[str, str]) -> None:
    """Raise ConfigError if this machine computes other bits than the workers that began the run. `kept`: their
    identity; `graph`: with all operators open."""
    nodes = {what.partition(OF_A_NODE)[2].rstrip("'") for what in kept}
    here = identity_of(graph, [name for name in graph.order if name in nodes])
    check_equal("the workers that began this run", kept, "this machine", here, "Go on with machines like those")
