"""docs/jobs.md has every job that ships, with keys and values that are so."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from pipeline import PROJECT
from pipeline.config.jobs import JOBS, jobs_table
from pipeline.config.keys import CONF, known_keys
from tools.bench.scenarios import SCENARIOS

PAGE = (PROJECT / "docs/jobs.md").read_text(encoding="utf-8")
NAMES = sorted(path.stem for path in JOBS.glob("*.yaml"))
SECTIONS = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S))
WIDEST = 110
"""Columns of a line of the list of jobs; the help has none wider than 120."""


def job_file(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((JOBS / f"{name}.yaml").read_text(encoding="utf-8"))
    return found


def option_of(name: str, group: str) -> str | None:
    return next((d[f"override /{group}"] for d in job_file(name)["defaults"] if f"override /{group}" in d), None)


def flow_of(name: str) -> str | None:
    return option_of(name, "flow")


def written(name: str) -> dict[str, Any]:
    """What the file of the job and those of its flow and metric say, by dotted keys; the job's own wins."""
    flow, chosen = flow_of(name), [(group, option_of(name, group)) for group in ("flow", "metric")]
    files = [CONF / f"{group}/{option}.yaml" for group, option in chosen if option is not None]
    parts = [yaml.safe_load(file.read_text(encoding="utf-8")) for file in files]
    if flow == "generate_checked":
        parts.insert(0, yaml.safe_load((CONF / "flow/generate.yaml").read_text(encoding="utf-8")))
    found: dict[str, Any] = {}
    for part in (*parts, job_file(name)):
        found.update(dotted(part))
    return found


def dotted(value: dict[str, Any], before: str = "") -> dict[str, Any]:
    """Every key, those of mappings too."""
    found: dict[str, Any] = {}
    for key, inside in value.items():
        found[before + key] = inside
        if isinstance(inside, dict):
            found.update(dotted(inside, f"{before}{key}."))
    return found


def settings_shown(name: str) -> list[tuple[str, str]]:
    return re.findall(r"^\| `([\w.]+)` \| (.*?) ?\|", SECTIONS[name], re.M)


def test_every_job_has_its_section_and_no_other_has_one():
    assert sorted(SECTIONS) == NAMES
    assert [name for name in NAMES if f"| [{name}](#{name}) |" not in PAGE] == []


@pytest.mark.parametrize("name", NAMES)
def test_the_settings_of_a_job_are_there_and_have_the_values_that_it_says(name):
    says, known = written(name), set(known_keys())
    shown = settings_shown(name)
    assert shown
    for key, cell in shown:
        group = ".".join(key.split(".")[:2])
        assert key in says or key in known or group in known, key
        if cell:
            assert key in says, key
            assert says[key] == yaml.safe_load(cell), key


@pytest.mark.parametrize("name", NAMES)
def test_a_job_has_its_graph_or_names_one_that_is_the_same(name):
    """Whether a graph is as `show=graph` prints it is tested with those of the README."""
    section = SECTIONS[name]
    if f"pipeline job={name} " in section:
        return
    if same := re.search(r"[Tt]he graph is that of \[(\w+)\]", section):
        assert flow_of(name) == flow_of(same[1]) is not None
        assert "nodes" not in job_file(name) | job_file(same[1])
    else:
        pages = re.findall(r"\[(\w+\.md)\]\([^)]*\) [^.]*has its graph", section)
        assert len(pages) == 1
        assert f"job={name} show=graph" in (PROJECT / "docs" / pages[0]).read_text(encoding="utf-8")


def test_it_names_every_scenario_of_the_benchmark():
    assert [name for name in SCENARIOS if f"`{name}`" not in SECTIONS["bench"]] == []


def test_a_job_is_a_line_of_the_list_and_says_what_it_does():
    lines = {line.split()[0]: line for line in jobs_table().splitlines()[1:-1]}
    assert sorted(lines) == NAMES
    assert [name for name, line in lines.items() if len(line) > WIDEST or line.endswith("...")] == []
    assert len({line.index(line.split(maxsplit=1)[1]) for line in lines.values()}) == 1
