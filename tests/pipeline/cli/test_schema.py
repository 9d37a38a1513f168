"""The JSON schema of job files: it takes every job, and marks a key that is misspelt and a value of another kind."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
import yaml

from pipeline.api.errors import ExitCode
from pipeline.cli.jobs import of_jobs
from pipeline.cli.main import main
from pipeline.config.jobs import JOBS
from pipeline.config.keys import FREE_FORM, schemas

FILES = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(JOBS.glob("*.yaml"))}
VALIDATOR = jsonschema.Draft202012Validator(of_jobs())
KEYED = (*schemas(), "target", "on_finish")
"""Keys of a job below which keys are ours, too."""


def test_it_is_a_schema_and_the_command_prints_it(capsys):
    assert main(["schema"]) == ExitCode.DONE
    printed = json.loads(capsys.readouterr().out)
    assert printed == VALIDATOR.schema
    jsonschema.Draft202012Validator.check_schema(printed)
    assert "temperature" in printed["$defs"]["sampling"]["properties"]
    assert all("description" in value for value in printed["$defs"]["sampling"]["properties"].values())


@pytest.mark.parametrize("name", FILES)
def test_every_job_fits(name):
    assert not [(list(error.path), error.message) for error in VALIDATOR.iter_errors(FILES[name])]


def keys(job: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """The places of all keys that the user does not choose."""
    yield from ((key,) for key in job)
    yield from ((key, own) for key in KEYED for own in job.get(key) or () if f"{key}.{own}" not in FREE_FORM)
    for graph in ("steps", "nodes"):
        for name, node in (job.get(graph) or {}).items():
            yield from ((graph, name, key) for key in node)
            op = node.get("op")
            ours = isinstance(op, dict) and op.get("_target_", "").startswith("operators.")
            yield from ((graph, name, "op", key) for key in (op if ours else ()) if key != "_target_")


def changed(job: dict[str, Any], place: tuple[str, ...], key: str = "", value: object = None) -> dict[str, Any]:
    """The job with another key, or another value, in this place."""
    made = copy.deepcopy(job)
    inside = made
    for above in place[:-1]:
        inside = inside.setdefault(above, {})
    inside[key or place[-1]] = inside.pop(place[-1]) if key else value
    return made


@pytest.mark.parametrize("name", FILES)
def test_a_misspelt_key_is_marked(name):
    job = FILES[name]
    taken = [place for place in keys(job) if VALIDATOR.is_valid(changed(job, place, f"{place[-1]}_"))]
    assert not taken


@pytest.mark.parametrize(
    ("key", "wrong", "right"),
    [
        ("chunk_rows", "many", 10),
        ("append", "maybe", "${oc.env:APPEND}"),
        ("seed", 1.5, "${now:%j}"),
        ("sampling.temperature", "hot", 0.5),
        ("runtime.slots", [16], 16),
        ("data.limit", "ten", 10),
        ("cluster.resources", ["a"], {"accelerator": 1}),
        ("on_finish.command", "curl", ["curl", "-d", "@-"]),
        ("target.accepted_rows", "all", None),
    ],
)
def test_a_value_of_another_kind_is_marked(key, wrong, right):
    place = tuple(key.split("."))
    assert not VALIDATOR.is_valid(changed({}, place, value=wrong))
    assert VALIDATOR.is_valid(changed({}, place, value=right))


def test_arguments_of_an_operator_of_ones_own_are_free():
    nodes = {"mine": {"inputs": "read", "op": {"_target_": "my.module.Mine", "anything": [1]}}}
    assert VALIDATOR.is_valid({"nodes": nodes})
