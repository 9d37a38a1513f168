"""Every job of jobs/ and every option of conf/ composes, and its operators take their arguments. Part of `make check`:
no data is read and no model loaded."""

from __future__ import annotations

import pytest

from pipeline.config.build import build_node
from pipeline.config.compose import composed
from pipeline.config.jobs import find_job, list_jobs
from pipeline.config.keys import options

pytestmark = pytest.mark.slow("Hydra composes each job and each option anew")

NEEDS = {
    "endpoint": {"model.url": "http://127.0.0.1:8000/v1"},
    **{flow: {"output.format": "parquet"} for flow in ("openai_batch", "openai_rerank")},
}
"""What an option does not work without."""
METRICS = options()["metric"]
OTHERS = {group: names for group, names in sorted(options().items()) if group != "metric"}
TOGETHER = [
    {group: names[turn] for group, names in OTHERS.items() if turn < len(names)}
    for turn in range(max(map(len, OTHERS.values())))
]
"""Every option once, one of each group at a time; but those that choose the flow."""


@pytest.mark.parametrize("job", [job.name for job in list_jobs()])
def test_a_job(job):
    builds(job, {})


@pytest.mark.parametrize("chosen", TOGETHER, ids=lambda chosen: "-".join(chosen.values()))
def test_options(chosen):
    builds("generate", chosen)


@pytest.mark.parametrize("metric", METRICS)
def test_a_metric(metric):
    builds("evaluate", {"metric": metric})


def builds(job: str, chosen: dict[str, str]) -> None:
    values = {key: value for name in chosen.values() for key, value in NEEDS.get(name, {}).items()}
    for name, node in composed(find_job(job), chosen, values).nodes.items():
        build_node(name, node)
