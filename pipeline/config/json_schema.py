"""A JSON schema of job files, by which editors complete keys, explain them and mark what cannot be: made of the
dataclasses of settings and of the operators' arguments, with what their docstrings say.

It is wider than the check of a run, which knows values and the rest of the job: what it marks, a run refuses, but for
numbers that are written as texts.
"""

from __future__ import annotations

from pipeline.config.annotations import INTERPOLATION, Schema, any_of, schema_of
from pipeline.config.build import TARGET, load_object
from pipeline.config.expand import OVERRIDDEN, STEP
from pipeline.config.keys import schemas
from pipeline.settings import JobSettings, NodeSettings


def of_jobs() -> Schema:
    """Return the schema of a job file."""
    groups = {group: any_of(map(schema_of, options.values())) for group, options in schemas().items()}
    refer = {group: {"$ref": f"#/$defs/{group}"} for group in groups}
    node, step, job = schema_of(NodeSettings), schema_of(load_object(STEP)), schema_of(JobSettings)
    node["properties"]["op"] = step["properties"]["op"] = {"$ref": "#/$defs/operator"}
    step["properties"] |= {group: refer[group] for group in OVERRIDDEN}
    keys = job["properties"] | {group: any_of([refer[group], {"type": "null"}]) for group in groups}
    for name, each in (("steps", step), ("nodes", node)):
        keys[name] = {"type": "object", "additionalProperties": each, "description": keys[name]["description"]}
    keys["defaults"] = {"type": "array", "description": "options of config groups: `- override /model: gguf`"}
    title = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "a job of python -m pipeline"}
    return title | job | {"properties": keys, "$defs": groups | {"operator": _of_operator()}}


def _of_operator() -> Schema:
    """Return the schema of `op`: arguments are known where `_target_` is one of our operators."""
    known = load_object("operators:targets")()
    rules = []
    for target in known:
        arguments = schema_of(load_object(target))
        arguments["properties"][TARGET] = {"const": target}
        rules.append({"if": {"properties": {TARGET: {"const": target}}, "required": [TARGET]}, "then": arguments})
    named = {TARGET: {"type": "string", "examples": known}}
    return any_of([INTERPOLATION, {"type": "object", "properties": named, "allOf": rules}])
