"""`repair=true` makes what is damaged again, and nothing else, as the run made it."""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path

import hydra
import pytest
import yaml

from pipeline.api.errors import ExitCode
from pipeline.cli.main import main
from pipeline.config import compose, keys
from pipeline.config.build import build_graph
from pipeline.config.config_yaml import settings_from, to_yaml
from pipeline.config.fingerprint import fingerprint_of
from pipeline.config.jobs import JOBS, find_job
from pipeline.settings import JobSettings
from tests.pipeline.damage import ODD, OPS, cut, files, flip, garbage, inodes, job, run
from tests.sets import often

pytestmark = pytest.mark.slow("runs, damages and mends jobs")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """The results of a finished run, with rejects in the chunks 0 and 4."""
    assert run(job(tmp_path / "out")) is ExitCode.DONE
    return tmp_path / "out"


@pytest.mark.parametrize("fail_at", [11, 31])
def test_a_damaged_chunk_is_made_again_alone(tmp_path, fail_at):
    """The operator would fail in the chunk before and in the one after."""
    broken = tmp_path / "broken"
    settings = job(tmp_path / "out", {"fail_at": fail_at, "broken": str(broken)})
    assert run(settings) is ExitCode.DONE
    before = files(tmp_path / "out")
    flip(tmp_path / "out" / ODD)
    broken.touch()
    assert main(["verify", str(tmp_path / "out"), "repair=true"]) == ExitCode.DONE
    assert files(tmp_path / "out") == before


def test_of_a_source_that_cannot_seek_all_chunks_before_are_gone_through(tmp_path):
    settings = job(tmp_path / "out")
    settings.nodes["numbers"].op["_target_"] = f"{OPS}.CannotSeek"
    assert run(settings) is ExitCode.DONE
    before, places = files(tmp_path / "out"), inodes(tmp_path / "out")
    flip(tmp_path / "out" / ODD)
    assert main(["verify", str(tmp_path / "out"), "repair=true"]) == ExitCode.DONE
    assert files(tmp_path / "out") == before
    assert {name for name, inode in inodes(tmp_path / "out").items() if inode != places[name]} == {ODD}


def test_a_chunk_that_comes_out_otherwise_is_not_taken(tmp_path, capsys):
    values = tmp_path / "values"
    settings = job(tmp_path / "out")
    settings.nodes["square"].op = {"_target_": f"{OPS}.AddFrom", "path": str(values)}
    values.write_text("1")
    assert run(settings) is ExitCode.DONE
    values.write_text("2")
    flip(tmp_path / "out" / ODD)
    before = files(tmp_path / "out")
    assert main(["verify", str(tmp_path / "out"), "repair=true"]) == ExitCode.FAILED
    assert f"made again, these have other bytes than before: {ODD}" in capsys.readouterr().err
    assert files(tmp_path / "out") == before


def test_an_unfinished_run_is_mended_as_far_as_it_is_committed(tmp_path, capsys):
    broken = tmp_path / "broken"
    square = {"fail_at": 27, "broken": str(broken)}
    run(job(tmp_path / "whole", square, max_open_chunks=1))
    broken.touch()
    out = tmp_path / "out"
    assert run(job(out, square, max_open_chunks=1)) is ExitCode.FAILED
    cut(out / "data/part-00001.parquet")
    assert main(["verify", str(out), "repair=true"]) == ExitCode.DONE
    assert "squares, failed, 2 chunks, 20 rows" in capsys.readouterr().out
    broken.unlink()
    assert run(job(out, square, max_open_chunks=1)) is ExitCode.DONE
    assert files(out) == files(tmp_path / "whole")


def test_with_operators_that_remember_all_chunks_before_are_gone_through(tmp_path):
    settings = job(tmp_path / "out")
    settings.nodes["square"].op = {"_target_": "tests.pipeline.stateful_ops.RunningSum"}
    assert run(settings) is ExitCode.DONE
    before, kept = files(tmp_path / "out"), inodes(tmp_path / "out")
    flip(tmp_path / "out" / ODD)
    assert main(["verify", str(tmp_path / "out"), "repair=true"]) == ExitCode.DONE
    assert files(tmp_path / "out") == before
    assert {n for n, i in inodes(tmp_path / "out").items() if i != kept[n]} <= {ODD}


def test_a_lost_state_keeps_the_old_files_until_they_are_made_again(tmp_path):
    broken = tmp_path / "broken"
    settings = job(tmp_path / "out", {"fail_at": 27, "broken": str(broken)}, max_open_chunks=1)
    assert run(settings) is ExitCode.DONE
    before = files(tmp_path / "out")
    garbage(tmp_path / "out/state.sqlite")
    broken.touch()
    assert main(["verify", str(tmp_path / "out"), "repair=true"]) == ExitCode.FAILED
    assert files(tmp_path / "out") == before
    assert (tmp_path / "out/state.sqlite.damaged").exists()
    broken.unlink()
    (tmp_path / "out/data/part-00007.parquet").write_bytes(b"of nobody")
    assert run(settings) is ExitCode.DONE
    assert files(tmp_path / "out") == before


def test_a_changed_input_is_named_and_nothing_is_mended(tmp_path, capsys):
    source = tmp_path / "rows.jsonl"
    source.write_text("".join(f'{{"x": {i}}}\n' for i in range(20)))
    settings = job(tmp_path / "out")
    settings.nodes["numbers"].op = {
        "_target_": "operators.sources.read_prompts.ReadPrompts",
        "data": {"path": str(source)},
        "chunk_rows": 10,
    }
    assert run(settings) is ExitCode.DONE
    flip(tmp_path / "out/data/part-00001.parquet")
    before = files(tmp_path / "out")
    with source.open("a") as file:
        file.write('{"x": 99}\n')
    assert main(["verify", str(tmp_path / "out"), "repair=true"]) == ExitCode.CONFIG
    assert 'nodes.numbers.files.0: "rows.jsonl, ' in capsys.readouterr().err
    assert files(tmp_path / "out") == before


def test_without_settings_the_command_that_made_it_is_asked_for(out, capsys):
    garbage(out / "state.sqlite")
    (out / "config.yaml").write_text("nodes: [")
    assert main(["verify", str(out), "repair=true"]) == ExitCode.CONFIG
    assert "run the command that made" in capsys.readouterr().err


@pytest.mark.parametrize("name", often(sorted(path.stem for path in JOBS.glob("*.yaml")), "best_of_n", "openai_rerank"))
def test_saved_settings_are_the_job_again(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    compose.register()
    found = find_job(name, [])
    compose.register_job(found)
    # The fake model has no head, no URL, and reads no images.
    is_special = name in ("caption", "classify_head", "judge_by_endpoint", "ocr", "openai_rerank", "rerank")
    overrides = [f"job={found.key}", "cluster=processes", *([] if is_special else ["model=fake"])]
    if (yaml.safe_load(found.path.read_text(encoding="utf-8")).get("data") or {}).get("path") is None:
        overrides.append(f"data.path={JOBS / 'data/quickstart.jsonl'}")
    with hydra.initialize_config_dir(str(keys.CONF), version_base="1.3"):
        settings = compose.settings_of(hydra.compose("config", overrides))
    again = settings_from(to_yaml(settings), tmp_path / "out")
    assert fingerprint_of(again, build_graph(again)) == fingerprint_of(settings, build_graph(settings))
    assert again.nodes == settings.nodes
    kinds = [{key.name: type(getattr(each, key.name)) for key in fields(JobSettings)} for each in (again, settings)]
    assert kinds[0] == kinds[1] | {"output_dir": str}
    assert again.cluster == settings.cluster


def test_paths_and_modules_mean_what_they_did_for_the_run(tmp_path, monkeypatch):
    """Repaired from another directory: the job file's folder has the operator, the data path is relative."""
    for name in ("here", "jobs", "elsewhere"):
        (tmp_path / name).mkdir()
    (tmp_path / "here/rows.jsonl").write_text("".join(f'{{"x": {i}}}\n' for i in range(20)))
    (tmp_path / "jobs/ops_to_repair.py").write_text("from tests.pipeline.job_ops import Parquet, Square\n")
    (tmp_path / "jobs/mine.yaml").write_text(
        """
chunk_rows: 10
progress: none
data: {path: rows.jsonl}
nodes:
  read: {op: {_target_: operators.sources.read_prompts.ReadPrompts, data: "${data}", chunk_rows: "${chunk_rows}"}}
  square: {inputs: read, op: {_target_: ops_to_repair.Square}}
  write: {inputs: square, op: {_target_: ops_to_repair.Parquet}}
"""
    )
    path, out = list(sys.path), tmp_path / "here/outputs/mine"

    def in_folder(name: str, *arguments: str) -> int:
        """As another process, that has imported nothing yet."""
        monkeypatch.chdir(tmp_path / name)
        monkeypatch.setattr(sys, "path", [*path])
        sys.modules.pop("ops_to_repair", None)
        return main(arguments)

    assert in_folder("here", "job=../jobs/mine.yaml") == ExitCode.DONE
    before = files(out)
    flip(out / "data/part-00001.parquet")
    assert in_folder("elsewhere", "verify", "../here/outputs/mine", "repair=true") == ExitCode.DONE
    assert files(out) == before


def test_a_job_that_cannot_be_built_any_more_is_told_with_what_to_do(out, capsys):
    config = out / "config.yaml"
    config.write_text(config.read_text().replace(f"{OPS}.Parquet", "operators.sinks.of_old.WriteOld"))
    (out / "state.sqlite").unlink()
    before = files(out)
    assert main(["verify", str(out), "repair=true"]) == ExitCode.CONFIG
    said = capsys.readouterr().err
    assert "there is no module 'operators.sinks.of_old'" in said
    assert "Where another version of this program made it, run its command again: with overwrite=true" in said
    assert files(out) == before
