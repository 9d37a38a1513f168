"""The type of a model's weights: what `model.weights=auto` takes for a job, and how all types compare."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import yaml

from pipeline.api.errors import ConfigError
from pipeline.api.protocols import WeightsSample, overrides
from pipeline.api.runtime import Resources
from pipeline.api.weights import WeightsFigures
from pipeline.config.build import Job, build_graph
from pipeline.dataflow.graph import Graph
from pipeline.dry_run.sample_run import SampleRun
from pipeline.run_dir.names import CONFIG
from pipeline.settings import PLAN, JobSettings, NodeSettings, TargetSettings

AUTO, AS_IS = "auto", "as_is"
_FILE = ("path", "repo", "file", "revision")
"""Settings that name the file of a model."""


def settled(settings: JobSettings) -> tuple[JobSettings, list[str]]:
    """Return the settings of a job with what `model.weights=auto` takes, and lines on it; other settings as they are.

    What the first attempt of a run took is taken again. Else the first node that generates with the model chooses, by
    what it knows, or by measuring on a sample of the job's rows; a plan does not measure.

    Raises:
        ConfigError: the graph is invalid, or no node generates.
    """
    plain = as_is(settings)
    if plain is settings:
        return settings, []
    if (before := None if settings.overwrite else _before(settings)) is not None:
        return _with(settings, before), []
    if settings.show or settings.dry_run == PLAN:
        return plain, ["model.weights=auto is chosen when the run begins; the plan is of the file as it is"]
    graph, name = _weighed(plain)

    def sample() -> WeightsSample:
        return stack.enter_context(_sample(plain, graph, name))

    with ExitStack() as stack:
        chosen, why = graph.nodes[name].op.best_weights(sample)
    return _with(settings, chosen), [f"model.weights=auto: {chosen} ({why})"]


def as_is(settings: JobSettings) -> JobSettings:
    """Return the settings of a job whose model is not loaded to generate: what `auto` takes makes no difference."""
    is_open = getattr(settings.model, "weights", None) == AUTO and settings.model.weights_chosen is None
    return _with(settings, AS_IS) if is_open else settings


def compared(settings: JobSettings, types: Sequence[str] = ()) -> Iterator[WeightsFigures]:
    """Measure the model of a job with its weights as they are, and then with each type of `types`, in turn. Empty: with
    all types."""
    if not hasattr(settings.model, "weights"):
        raise ConfigError(f"the job {settings.name} has no model (the config group model), so it has no weights")
    model = dataclasses.replace(settings.model, weights=AUTO, weights_chosen=None)
    whole = dataclasses.replace(_replaced(settings, settings.model, model), overwrite=False)
    plain = _with(whole, AS_IS)
    graph, name = _weighed(plain)
    with _sample(plain, graph, name) as sample:
        yield from graph.nodes[name].op.compare_weights(dataclasses.replace(sample, types=types))


def _weighed(settings: JobSettings) -> tuple[Graph, str]:
    """Return the graph of a job, and its first node that can tell one type from another."""
    graph = build_graph(dataclasses.replace(settings, target=TargetSettings()))
    found = next((name for name in graph.order if overrides(graph.nodes[name].op, "best_weights")), None)
    if found is None:
        raise ConfigError(
            "weights are measured for jobs with a Generate node, and this has none; name a type: model.weights=bf16"
        )
    return graph, found


@contextmanager
def _sample(settings: JobSettings, graph: Graph, name: str) -> Iterator[WeightsSample]:
    process = Resources()  # not that of the run: what is measured here is not kept in memory
    try:
        with SampleRun(Job(settings, graph, {}, settings.directory.absolute()), process, 0.0, 0, 0).before(name) as it:
            yield it
    finally:
        process.close()


def _before(settings: JobSettings) -> str | None:
    """Return what an earlier attempt of this run took for the same file; None if there was none."""
    try:
        model = yaml.safe_load((settings.directory / CONFIG).read_text(encoding="utf-8"))["model"]
        same = all(model[key] == getattr(settings.model, key) for key in _FILE)
        chosen = model["weights_chosen"] if same and model["weights"] == AUTO else None
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError):
        return None
    return chosen if isinstance(chosen, str) else None


def _with(settings: JobSettings, chosen: str) -> JobSettings:
    return _replaced(settings, settings.model, dataclasses.replace(settings.model, weights_chosen=chosen))


def _replaced(settings: JobSettings, before: Any, after: Any) -> JobSettings:
    """Return `settings` with `weights` and `weights_chosen` of `after` wherever a node has the file of `before` with
    its type."""

    def filled(value: Any) -> Any:
        fits = type(value) is type(before) and value.weights == before.weights
        if fits and all(getattr(value, key) == getattr(before, key) for key in _FILE):
            return dataclasses.replace(value, weights=after.weights, weights_chosen=after.weights_chosen)
        return value

    def node(given: NodeSettings) -> NodeSettings:
        return dataclasses.replace(given, op={key: filled(value) for key, value in given.op.items()})

    nodes = {name: node(given) for name, given in settings.nodes.items()}
    return dataclasses.replace(settings, model=filled(settings.model), nodes=nodes)
