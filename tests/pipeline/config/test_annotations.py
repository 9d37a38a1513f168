"""An argument of an operator is what its annotation says, or the job is refused with both in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from pipeline.api.errors import GraphError
from pipeline.config.annotations import allowed
from pipeline.config.build import build_graph
from pipeline.settings import JobSettings, NodeSettings


@dataclass
class Group:
    path: str = "here"


@pytest.mark.parametrize(
    ("hint", "fitting", "others"),
    [
        (int, [0, -1, 10**30], [True, 1.0, "1", None, [1]]),
        (float, [0, 0.5, float("nan")], [False, "1", None]),
        (str, ["", "x"], [1, None, ["x"]]),
        (bool, [True, False], [0, "true", None]),
        (str | None, ["x", None], [1, False]),
        (list[int], [[], [1, 2]], [1, "1", ["1"], [None], {}]),
        (Sequence[str], [["a"], ("a",)], ["a", [1]]),
        (tuple[int, ...], [[1, 2]], [["a"]]),
        (dict[str, str] | None, [{}, {"a": "b"}, None], [[], "a", {"a": True}, {1: "b"}]),
        (Mapping[str, Any], [{"a": 1}], [None, 1]),
        (Group, [Group()], [None, 1, "x"]),
        (Any, [None, 1, object()], []),
    ],
)
def test_a_value_fits_its_annotation_or_not(hint, fitting, others):
    assert all(allowed(hint).fits(value) for value in fitting)
    assert not any(allowed(hint).fits(value) for value in others)


def test_annotations_are_told_in_words():
    assert allowed(int | None).words == "a whole number or null"
    assert allowed(Group).words == "a mapping with keys of path"


READ = "operators.sources.read_prompts.ReadPrompts"


@pytest.mark.parametrize(
    ("op", "reason"),
    [
        ({"data": 5, "chunk_rows": 8}, "data is 5, and must be a mapping with keys of path, storage_options"),
        ({"data": {"format": 5}, "chunk_rows": 8}, "data.format is 5, and must be a text"),
        (
            {"data": {"prompt_column": True}, "chunk_rows": 8},
            'must be a text; True is a boolean here, .* write "yes", "on"',
        ),
        ({"data": {"path": "x"}, "chunk_rows": "many"}, "chunk_rows is 'many', and must be a whole number"),
    ],
)
def test_a_job_with_another_argument_is_refused(op, reason):
    settings = JobSettings(nodes={"read": NodeSettings({"_target_": READ, **op})})
    with pytest.raises(GraphError, match=reason):
        build_graph(settings)


@pytest.mark.parametrize("node", ["x", NodeSettings("x")])  # type: ignore[arg-type]
def test_a_node_that_an_interpolation_made_something_else_is_refused(node):
    with pytest.raises(GraphError, match="must be a mapping"):
        build_graph(JobSettings(nodes={"read": node}))
