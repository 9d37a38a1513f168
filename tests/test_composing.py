"""What is kept of a composition (tests/composing.py) is what Hydra composes anew."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from pipeline.config.compose import register, register_job
from pipeline.config.jobs import find_job
from pipeline.config.keys import CONF
from tests import composing


def composed(job: str, *overrides: str) -> str:
    register()
    found = find_job(job)
    register_job(found)
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return str(
            OmegaConf.to_container(compose("config", [f"job={found.key}", *overrides], return_hydra_config=True))
        )


@pytest.fixture
def anew(monkeypatch):
    """Compose by Hydra alone."""

    def call(job: str, *overrides: str) -> str:
        with monkeypatch.context() as patch:
            for place, name, hydras in composing.replaced:
                patch.setattr(place, name, hydras)
            return composed(job, *overrides)

    return call


@pytest.mark.parametrize("choices", [(), ("sampling=greedy", "model=fake"), ("output=jsonl",)])
def test_it_is_the_same_whatever_was_composed_before(choices, anew):
    for values in (["seed=1"], ["seed=2", "sampling.max_tokens=3"], ["++seed=3", "progress=none"]):
        assert composed("quickstart", *choices, *values) == anew("quickstart", *choices, *values)


def test_no_composition_copies_the_jobs_of_earlier_ones(monkeypatch, anew):
    """Those of a thousand tests made each later run of a process cost seconds."""

    class Earlier:
        def __deepcopy__(self, memo: object) -> object:
            raise AssertionError("it is copied")

    monkeypatch.setitem(ConfigStore.instance().repo, "earlier.yaml", Earlier())
    assert composed("quickstart", "seed=4") == anew("quickstart", "seed=4")


@pytest.mark.laws
def test_a_job_may_lie_elsewhere_under_the_same_name(tmp_path: Path, anew):
    for folder in ("one", "other"):
        job = tmp_path / folder / "own.yaml"
        job.parent.mkdir()
        job.write_text("seed: 1\n", encoding="utf-8")
        assert composed(str(job)) == anew(str(job))
    (tmp_path / "other" / "own.yaml").rename(tmp_path / "other" / "renamed.yaml")
    assert "renamed" in composed(str(tmp_path / "other" / "renamed.yaml"))


@pytest.mark.laws
def test_a_job_file_that_changes_is_read_again(tmp_path: Path, anew):
    job = tmp_path / "own.yaml"
    for text in ("seed: 1\n", "seed: 2\n", "defaults: [{override /sampling: greedy}]\nseed: 2\n"):
        job.write_text(text, encoding="utf-8")
        assert composed(str(job)) == composed(str(job)) == anew(str(job))
