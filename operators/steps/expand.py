"""Expand steps into the nodes of a graph: render, tokenize, batch, generate, and what becomes of the completion."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from typing import Any

import pyarrow as pa

from operators.generation.completions import COMPLETION_IDS, REASONING, TEXT, completion_fields
from operators.generation.tool_calls import TOOL_CALLS
from operators.images.columns import PROMPT_IMAGES
from operators.prompts.row_images import may_have_images
from operators.rows.token_lists import PROMPT_IDS, PROMPT_LITERALS, PROMPT_TEXT
from operators.scoring.columns import CHOICE
from operators.settings import SamplingSettings
from operators.settings.endpoint import EndpointSettings
from operators.settings.structured import StructuredSettings
from operators.steps.step import Step, json_schema
from pipeline.api.errors import ConfigError, did_you_mean

SOURCE, SINK = "read", "write"
READS = {"_target_": "operators.sources.read_prompts.ReadPrompts"}
WRITES = {"_target_": "operators.sinks.write_rows.WriteRows"}
Node = dict[str, Any]
"""What a job says of a node: op, inputs, on_error; and `step`, the one that it was made for."""
KEYS = {
    "": {
        "where": "where",
        "sampling.n": "n",
        "sampling.structured.choices": "choices",
        "options": "choices",
        "adapter": "adapter",
        "sampling.structured.regex": "regex",
        "sampling.structured.json_schema": "schema",
    },
    "_prompt": {"messages": "messages", "template": "prompt", "writes": "writes", "images": "images", "where": "where"},
    "_json": {"fields": "schema", "schema": "schema", "where": "where"},
    "_value": {"where": "where"},
    "_pick": {"by": "pick", "column": "pick"},
    "_keep": {"where": "keep", "reason": "keep"},
    "_drop": {"where": "drop", "reason": "drop"},
}
"""By the ending of a node's name: the key of a step by the argument that it becomes."""
SAME = {"inputs": "after", "on_error": "on_error"}
"""Keys of a step by the setting of a node."""
GROUPS = ("model", "sampling", "decode", "runtime", "store")
Groups = Mapping[str, Any]


def expand(steps: Mapping[str, Step], nodes: Mapping[str, Node], groups: Mapping[str, Groups]) -> dict[str, Node]:
    """Return the nodes of a job with steps: a source, those of the steps, the job's own, and a sink.

    A step reads the one before it, the first one the source. Who reads a step reads the last of its nodes. Without a
    node `write`, or where that has no inputs, the rows of the last step are written.

    Args:
        steps: by name, in their order.
        nodes: the job's own, by name; they may read steps, and steps may read them.
        groups: the settings of each step: model, sampling, decode, runtime, store, output, seed, data.

    Raises:
        ConfigError: a name is taken, `after` is unknown, or steps form a cycle. The message names the step.
    """
    job_nodes = {name: dict(node) for name, node in nodes.items()}
    if any(step.images for step in steps.values()):  # the others mean to have none
        steps = {
            name: step if step.images or groups[name]["data"].image_column else replace(step, images=[])
            for name, step in steps.items()
        }
    chains = {name: _chain(name, step, groups[name]) for name, step in steps.items()}
    new_nodes = [node for chain in chains.values() for node in chain]
    for step, chain in chains.items():
        if twice := [n for n in chain if n in job_nodes or n in (SOURCE, SINK) or new_nodes.count(n) > 1]:
            raise ConfigError(f"step '{step}' makes a node '{twice[0]}', and there is another; rename one of them")
    source = next((name for name, node in job_nodes.items() if not node["inputs"] and name != SINK), SOURCE)
    job_nodes.setdefault(source, {"op": READS, "inputs": []})
    inputs = _inputs(steps, source, job_nodes)
    final = list(steps)[-1]
    if not any(final in read for read in inputs.values()):
        sink = job_nodes.setdefault(SINK, {"op": WRITES, "inputs": []})
        inputs[SINK] = sink["inputs"] = sink["inputs"] or [final]
    _refuse_cycle(inputs, steps)
    last = {name: next(reversed(chain)) for name, chain in chains.items()}
    all_nodes = {source: _with_json_columns(job_nodes[source], chains)}
    for step, chain in chains.items():
        read = [last.get(name, name) for name in inputs[step]]
        for name, node in chain.items():
            all_nodes[name] = {"inputs": read, "step": step, **node}
            read = [name]
    rest = {name: {**node, "inputs": [last.get(i, i) for i in node["inputs"]]} for name, node in job_nodes.items()}
    return {**all_nodes, **{name: node for name, node in rest.items() if name != source}}


def key_of(ending: str, setting: str, *, asks: bool) -> str | None:
    """Return the key of a step that becomes `setting` of one of its nodes; None if there is none.

    Args:
        ending: of the node's name, behind the name of the step.
        setting: `inputs`, `on_error` or an argument as `op.sampling.n`.
        asks: the step asks a model; otherwise it is an operator.
    """
    if setting in SAME:
        return SAME[setting]
    argument = setting.removeprefix("op.")
    if not asks and not ending and setting == f"op.{argument}":
        return setting
    if argument == setting:
        return None
    group = argument.partition(".")[0]
    return KEYS.get(ending, {}).get(argument) or (argument if group in (*GROUPS, "seed") else None)


def _with_json_columns(source: Node, chains: Mapping[str, Mapping[str, Node]]) -> Node:
    """Return the source, told to read as JSON text the columns that steps take their messages from."""
    ops = [node["op"] for chain in chains.values() for node in chain.values()]
    columns = sorted({name for op in ops if isinstance(name := op.get("messages"), str)})
    if not columns or source["op"]["_target_"] != READS["_target_"]:
        return source
    return {**source, "op": {**source["op"], "json_columns": columns}}


def _inputs(steps: Mapping[str, Step], source: str, job_nodes: Mapping[str, Node]) -> dict[str, list[str]]:
    """Return the names of the steps and nodes that each step and node reads."""
    inputs = {name: node["inputs"] for name, node in job_nodes.items()}
    previous = source
    for name, step in steps.items():
        after = [step.after] if isinstance(step.after, str) else step.after
        for other in after or ():
            if other not in steps and other not in job_nodes:
                hint = did_you_mean(other, [*steps, *job_nodes]) or f"; there are {', '.join([*steps, *job_nodes])}"
                raise ConfigError(f"step '{name}': after: {other} is no step and no node{hint}")
        inputs[name] = after or [previous]
        previous = name
    return inputs


def _refuse_cycle(inputs: Mapping[str, list[str]], steps: Mapping[str, Step]) -> None:
    try:
        TopologicalSorter(inputs).prepare()
    except CycleError as error:
        cycle: list[str] = error.args[1]
        step = next((name for name in cycle if name in steps), None)
        if step is not None:  # a cycle of nodes alone is an error of the graph
            raise ConfigError(f"step '{step}' is on a cycle: {' -> '.join(cycle)}; mend `after`") from error


def _chain(name: str, step: Step, groups: Groups) -> dict[str, Node]:
    """Return the nodes of a step, each without its inputs: the node before it."""
    if not name.isidentifier():
        raise ConfigError(f"step '{name}': it gives a column its name, so it has letters, digits and _ only")
    try:
        if step.op is not None:
            nodes = {name: {"op": step.op}}
        else:
            nodes = {node: {"op": op} for node, op in _nodes(name, step, groups)}
    except ConfigError as error:
        raise ConfigError(f"step '{name}': {error}") from error
    for key, where in (("keep", step.keep), ("drop", f"({step.drop}) IS NOT TRUE" if step.drop else None)):
        if where is not None:
            reason = f"{key}: {getattr(step, key)}"
            nodes[f"{name}_{key}"] = {"op": {"_target_": "operators.filter.Filter", "where": where, "reason": reason}}
    if step.op is None:
        nodes[f"{name}_columns"] = {"op": _without_intermediates(name, step, groups)}
    each = nodes if step.on_error == "keep" else [name]
    return nodes | {node: {**nodes[node], "on_error": step.on_error} for node in each}


def _nodes(name: str, step: Step, groups: Groups) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield name and op of the nodes that ask the model and make the step's columns."""
    model, runtime, kept = groups["model"], groups["runtime"], _asked(step, groups)
    op, answer = _generates(step, groups), {TEXT: name}
    if step.probability:
        op, answer = _chooses(step, groups), {"choice": name, "choice_probability": f"{name}_probability"}
    asked = {} if step.where is None else {"where": step.where}
    answered = {} if step.where is None else {"where": f'"{name}" IS NOT NULL'}
    prompt: dict[str, Any] = {"messages": step.conversation(), "writes": step.writes}
    prompt = {"template": step.prompt} if step.raw else prompt
    prompt |= {} if step.images is None else {"images": step.images}
    yield f"{name}_prompt", {"_target_": "operators.render.Render", "model": model, **prompt, **asked}
    yield f"{name}_tokens", {"_target_": "operators.tokens.Tokenize", "model": model}
    yield f"{name}_batch", {"_target_": "operators.batch_by_length.BatchByLength", "runtime": runtime}
    yield name, {**op, "as": name, **asked}
    names = {f"{name}_{column}": new for column, new in answer.items()}
    drop, prompt_columns = [PROMPT_IDS.name], [PROMPT_TEXT.name, PROMPT_LITERALS.name]
    if may_have_images(model, groups["data"], step.images, parts=isinstance(step.messages, str)):
        prompt_columns.append(PROMPT_IMAGES.name)
    if PROMPT_TEXT.name in kept:
        names |= {column: f"{name}_{column}" for column in prompt_columns}
    else:
        drop += prompt_columns
    yield f"{name}_names", {"_target_": "operators.columns.Rename", "columns": names, "drop": drop}
    if step.extract is not None or step.score is not None:
        yield f"{name}_value", {"_target_": "operators.map.Map", **_value(name, step, kept), **answered}
    if step.schema is not None:
        columns = json_schema(step.schema)[1]
        parse = {"_target_": "operators.parse_json.ParseJson", "column": name, "as": name}
        yield f"{name}_json", {**parse, **columns, **answered}
    if step.pick == "best":
        by = name if step.score is not None else f"{name}_logprobs"
        yield f"{name}_pick", {"_target_": "operators.best_of.BestOf", "by": by, "losers": "drop"}
    if step.pick == "majority":
        majority = {"_target_": "operators.best_of.Majority", "column": name, "as": name, "losers": "drop"}
        yield f"{name}_pick", majority


def _generates(step: Step, groups: Groups) -> dict[str, Any]:
    kept = _asked(step, groups)
    return {
        "_target_": "operators.generate.Generate",
        "sampling": _sampling(step, groups["sampling"]),
        **{key: groups[key] for key in ("model", "decode", "runtime", "store", "seed")},
        "id_column": groups["data"].id_column,
        **({} if step.adapter is None else {"adapter": step.adapter}),
        "completion_ids": "completion_ids" in kept,
        "completion_text": groups["output"].completion_text,
        "reasoning": _keeps(REASONING, kept),
        "tool_calls": _keeps(TOOL_CALLS, kept),
    }


def _chooses(step: Step, groups: Groups) -> dict[str, Any]:
    joint = {"joint": True} if isinstance(groups["model"], EndpointSettings) else {}  # a server cannot do otherwise
    shared = {key: groups[key] for key in ("model", "runtime", "store")}
    adapter = {} if step.adapter is None else {"adapter": step.adapter}
    return {"_target_": "operators.choose.Choose", "options": step.choices, **adapter, **joint, **shared}


def _sampling(step: Step, sampling: SamplingSettings) -> SamplingSettings:
    """Return `sampling` with what the keys of the step ask for."""
    changes: dict[str, Any] = {} if step.n is None else {"n": step.n}
    if step.pick == "best" and step.score is None and sampling.logprobs is None:
        changes["logprobs"] = 0
    schema = None if step.schema is None else json_schema(step.schema)[0]
    if any(kind is not None for kind in (schema, step.choices, step.regex)):
        constraint = StructuredSettings(json_schema=schema, choices=step.choices, regex=step.regex)
        of_job = sampling.structured
        changes["structured"] = replace(constraint, whitespace=of_job.whitespace, skip_forced=of_job.skip_forced)
    return replace(sampling, **changes)


def _value(name: str, step: Step, kept: Collection[str]) -> dict[str, Any]:
    """Return the arguments of Map that make the step's value of the completion, which has the step's name."""
    full_text = {f"{name}_{TEXT}": f'"{name}"'} if TEXT in kept else {}
    text = f"{{% set completion = {name} %}}{step.extract or '{{ completion }}'}"
    if step.score is None:
        return {"columns": full_text, "templates": {name: text}}
    least, most = step.score
    return {"columns": full_text, "numbers": {name: {"template": text, "least": least, "most": most}}}


def _keeps(fields: Iterable[pa.Field], kept: Collection[str]) -> bool:
    return any(field.name in kept for field in fields)


def _asked(step: Step, groups: Groups) -> set[str]:
    """Return the columns of a completion to keep, without the step's prefix."""
    output = groups["output"]
    by_job = {PROMPT_TEXT.name: output.prompt_text, "completion_ids": output.completion_ids}
    return {*step.columns, *(column for column, wanted in by_job.items() if wanted)}


def _without_intermediates(name: str, step: Step, groups: Groups) -> dict[str, Any]:
    """Return the op that drops what nobody asked for."""
    kept, sampling = _asked(step, groups), groups["sampling"]
    if sampling.logprobs is not None:
        kept |= {"logprobs", "top_logprobs"}
    fields: Sequence[pa.Field] = CHOICE[1:-1]
    more: Sequence[pa.Field] = ()
    if not step.probability:
        fields = completion_fields(
            _sampling(step, sampling),
            keep_ids="completion_ids" in kept,
            reasons=_keeps(REASONING, kept),
            calls=_keeps(TOOL_CALLS, kept),
        )
        more = (COMPLETION_IDS, *REASONING, *TOOL_CALLS)
    names = [TEXT, *(f.name for f in (*fields, PROMPT_TEXT, *more) if f.name != TEXT)]
    if unknown := [column for column in step.columns if column not in names]:
        hint = did_you_mean(unknown[0], names) or f"; there are {', '.join(names)}"
        raise ConfigError(f"step '{name}': columns has '{unknown[0]}', which no completion has{hint}")
    if TEXT in step.columns and step.extract is None and step.score is None:
        raise ConfigError(f"step '{name}': columns has '{TEXT}', and that is what the column '{name}' holds")
    drop = [f"{name}_{f.name}" for f in fields if f.name not in {*kept, TEXT}]
    return {"_target_": "operators.columns.Select", "drop": drop}
