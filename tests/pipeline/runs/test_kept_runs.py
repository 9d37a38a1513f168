"""Unfinished runs and stores of earlier versions go on: kept as data, each as a kill left it.

kept/COMMIT.tar.xz holds prompts.jsonl, steps.yaml and two runs of that commit (COMMANDS, killed while the third chunk
of four was being committed: PIPELINE_FAILPOINT=shard-renamed:3 and :5). A change that cannot go on with such a run has
to refuse it in one line, and says so here.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline.api.errors import ExitCode
from pipeline.cli.main import main
from pipeline.results.reader import read_results

pytestmark = pytest.mark.slow("goes on with two runs of each kept commit")

KEPT = sorted((Path(__file__).parent / "kept").glob("*.tar.xz"))
OF_OLD = {"424e680": "(absent)", "cb1fddd": "2", "c24040b": "3"}
"""Commits that read rows, made prompts or checked answers by other rules, and their number: a run of them is refused.
That of 424e680 had threads and KV layout in its fingerprints, and the build of llama.cpp in none of its keys, too: a
store of it answers nothing."""
ROWS = 24
SMALL = ("chunk_rows=6", "runtime.slots=4", "runtime.threads=1", "sampling.max_tokens=8", "progress=none")
COMMANDS = {
    "tiny": ("job=generate", "model=tiny", "data.path=prompts.jsonl", *SMALL),
    "steps": ("job=steps.yaml", "model=fake", *SMALL),  # a step, Dedup and a condition: state, rejects, two Generates
}


def commit_of(archive: Path) -> str:
    return archive.name.partition(".")[0]


def of(*commits: str) -> pytest.MarkDecorator:
    paths = [path for path in KEPT if commit_of(path) in commits]
    return pytest.mark.parametrize("kept", paths, ids=commit_of, indirect=True)


@pytest.fixture(params=[path for path in KEPT if commit_of(path) not in OF_OLD], ids=commit_of)
def kept(request, tmp_path, monkeypatch) -> Path:
    """A folder with the runs, which is the current one."""
    with tarfile.open(request.param) as archive:
        archive.extractall(tmp_path, filter="data")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(name: str, directory: str, *settings: str) -> int:
    # Texts of the model that ships may have other bits here than on the machine of then.
    return main([*COMMANDS[name], f"output_dir={directory}", "other_bits=allow", *settings])


def contents(directory: Path, names: Sequence[str]) -> dict[str, bytes]:
    paths = [path for name in names for path in sorted((directory / name).rglob("*.parquet"))]
    return {str(path.relative_to(directory)): path.read_bytes() for path in paths}


def metrics(directory: Path, table: str) -> list[dict[str, Any]]:
    found = read_results(directory).metrics(table)
    return [] if found is None else found.collect().to_dicts()


@pytest.mark.parametrize("name", COMMANDS)
def test_a_run_goes_on_with_what_it_had(name, kept):
    before = contents(kept / name, ["data", "rejects"])
    committed = {path: text for path, text in before.items() if not path.endswith("part-00002.parquet")}
    assert len(committed) >= 2
    assert run(name, name) == ExitCode.DONE
    after = contents(kept / name, ["data", "rejects"])
    assert committed.items() <= after.items()
    rows = [row for text in after for row in pq.read_table(kept / name / text).column("row").to_pylist()]
    assert sorted(rows) == list(range(ROWS))
    assert main(["verify", name]) == ExitCode.DONE


@of(*OF_OLD)
def test_a_run_by_other_rules_is_refused(kept, request, capsys):
    assert run("tiny", "tiny") == ExitCode.CONFIG
    said = capsys.readouterr().err
    rules = OF_OLD[request.node.callspec.id]
    assert f"this version reads rows, makes prompts or checks answers by other rules ({rules} -> 4)\n" in said
    assert "overwrite=true" in said


@of("424e680")
def test_a_run_with_another_fingerprint_is_refused_by_the_keys(kept, capsys):
    assert run("tiny", "tiny") == ExitCode.CONFIG
    said = capsys.readouterr().err
    assert 'nodes.generate.kv: "per_sequence" -> (absent)\n  nodes.generate.threads: 1 -> (absent)\n' in said


@of("424e680")
def test_a_store_with_other_keys_answers_nothing(kept):
    assert run("tiny", "today", f"store.path={kept / 'tiny/completions.sqlite'}") == ExitCode.DONE
    assert not any(row["from_store"] for row in metrics(kept / "today", "rows"))


def test_its_bytes_are_those_of_a_run_of_today(kept):
    assert run("steps", "steps") == run("steps", "today") == ExitCode.DONE
    assert contents(kept / "steps", ["data", "rejects"]) == contents(kept / "today", ["data", "rejects"])


@of(*(commit_of(path) for path in KEPT if commit_of(path) != "424e680"))
def test_its_store_answers_a_run_of_today(kept):
    """On the fake model, which computes alike on all machines."""
    assert run("steps", "today", f"store.path={kept / 'steps/completions.sqlite'}") == ExitCode.DONE
    (attempt,) = metrics(kept / "today", "run")
    assert json.loads(attempt["totals"])["reply/found_earlier"] == ROWS


def test_what_its_metrics_counted_is_kept(kept):
    before = metrics(kept / "steps", "stages")
    assert run("steps", "steps") == ExitCode.DONE
    (attempt,) = metrics(kept / "steps", "run")
    assert json.loads(attempt["totals"])["reply/found_resumed"] == ROWS - 2 * 6
    assert [stage for stage in metrics(kept / "steps", "stages") if stage["attempt"] == 1] == before != []


def test_it_is_repaired_from_its_own_config(kept):
    shard = kept / "steps/data/part-00000.parquet"
    before = shard.read_bytes()
    shard.write_bytes(before[:-9])
    assert run("steps", "steps") == ExitCode.CONFIG  # it names the repair
    assert main(["verify", "steps", "repair=true"]) == ExitCode.DONE
    assert shard.read_bytes() == before
    assert run("steps", "steps") == ExitCode.DONE
