"""What counts as another job."""

from __future__ import annotations

from dataclasses import dataclass, field

from pipeline.config.build import build_graph
from pipeline.config.fingerprint import differences, fingerprint_of
from pipeline.run_dir.manifest import digest
from pipeline.settings import JobSettings, NodeSettings

OPS = "tests.pipeline.job_ops"


@dataclass
class Group:
    """A config group: one key that decides bytes, two that do not."""

    temperature: float = 0.0
    path: str = "here.jsonl"
    slots: int = field(default=16, metadata={"fingerprint": False})


def fingerprint(sampling=None, on_node=None, **numbers):
    nodes = {
        "numbers": NodeSettings({"_target_": f"{OPS}.Numbers", "rows": 5, **numbers}),
        "square": NodeSettings({"_target_": f"{OPS}.Square", "bad": on_node}, "numbers"),
        "write": NodeSettings({"_target_": f"{OPS}.Parquet"}, "square"),
    }
    settings = JobSettings(nodes=nodes, sampling=sampling)
    return fingerprint_of(settings, build_graph(settings))


def test_a_group_that_a_node_takes_whole_stands_under_the_key_that_users_type():
    found = fingerprint(Group(0.5), Group(0.5))
    assert found["sampling.temperature"] == 0.5
    assert not [k for k in found if "path" in k or "slots" in k]
    assert fingerprint(Group(0.5), Group(0.7))["nodes.square.op.bad.temperature"] == 0.7


def test_a_group_that_no_node_takes_does_not_count():
    assert fingerprint(Group(0.5)) == fingerprint(Group(0.7))


def test_the_content_of_files_counts_and_their_place_does_not():
    assert fingerprint(content="a") != fingerprint(content="b")
    assert fingerprint()["nodes.numbers.content"] == "a"


def test_differences_name_the_key_and_both_values():
    before, now = fingerprint(Group(0.0), Group(0.0)), fingerprint(Group(0.5), Group(0.5))
    assert differences(before, now) == ["sampling.temperature: 0.0 -> 0.5"]
    assert differences(before, before) == []
    assert differences({"nodes.f.code.mine.ops": "a" * 64}, {"nodes.f.code.mine.ops": "b" * 64}) == [
        "mine/ops.py, code of the node 'f', has changed"
    ]
    assert digest(before) != digest(now)
    assert digest(before) == digest(dict(reversed(before.items())))
