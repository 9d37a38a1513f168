"""SIGTERM and SIGINT: exit code 4 wherever they come, and the same command resumes to the same bytes."""

from __future__ import annotations

import itertools
import json
import signal
from pathlib import Path

import pytest

from pipeline import PROJECT
from pipeline.system.failpoints import VARIABLE, Failpoint
from tests.faults.hooks import AT, WATCHED
from tests.faults.results import committed_shards_are_whole, files, lost_and_doubled, query
from tests.pipeline.command_line import in_process

MAIN = "tests.faults.hooks:command_line"
ROWS = 48
PLACES = {
    "composition": (VARIABLE, Failpoint.CONFIG_COMPOSED),
    "planning": (AT, "inspect"),
    "the lock": (VARIABLE, Failpoint.LOCK_TAKEN),
    "the first transaction": (VARIABLE, Failpoint.STATE_COMMITTING),
    "the attempt's begin": (VARIABLE, Failpoint.ATTEMPT_STARTED),
    "config.yaml": (VARIABLE, Failpoint.FILE_WRITTEN),
    "model load": (AT, "load"),
    "prefill": (AT, "prefill:2"),
    "decode": (AT, "decode:6"),
    "a shard": (VARIABLE, f"{Failpoint.SHARD_WRITTEN}:2"),
    "commit": (VARIABLE, f"{Failpoint.SHARD_RENAMED}:2"),
    "the commit's transaction": (VARIABLE, f"{Failpoint.STATE_COMMITTING}:4"),
    "the journal": (VARIABLE, Failpoint.JOURNAL_COMMITTING),
    "end accounting": (VARIABLE, Failpoint.METRICS_MERGE_RENAMED),
    "the manifest": (VARIABLE, Failpoint.MANIFEST_WRITTEN),
    "the attempt's end": (VARIABLE, Failpoint.ATTEMPT_ENDED),
}
SIGNALS = ("TERM", "INT", "TERM+TERM", "INT+INT")
FEW = [("composition", "TERM"), ("commit", "INT")]
"""Tried in every test run, with what has a test of its own below."""
REST = [case for case in itertools.product(PLACES, SIGNALS) if case not in FEW]


@pytest.fixture(scope="module")
def settings(tmp_path_factory) -> tuple[str, ...]:
    """A job on the model that ships, of a second at most."""
    path = tmp_path_factory.mktemp("signals") / "prompts.jsonl"
    words = ("red", "green", "blue", "white", "black")
    lines = [json.dumps({"prompt": f"Say {words[i % 5]} {i} times."}) for i in range(ROWS)]
    lines[7] = '{"prompt": '
    path.write_text("\n".join(lines), encoding="utf-8")
    return (
        *("job=generate", "model=tiny", *WATCHED, f"data.path={path}", "chunk_rows=12", "max_error_rate=0.1"),
        *("sampling.max_tokens=6", "runtime.slots=6", "runtime.threads=1", "progress=none"),
    )


@pytest.fixture(scope="module")
def whole(forks, settings, tmp_path_factory) -> Path:
    """A run that nothing happened to."""
    directory = tmp_path_factory.mktemp("whole") / "out"
    ended = forks.run(MAIN, *settings, f"output_dir={directory}")
    assert ended.code == 0, ended.output
    assert lost_and_doubled(directory, ROWS) == (0, 0)
    return directory


@pytest.fixture
def stopped_at(forks, settings, whole, matrix, tmp_path):
    """Send signals at a place, look at what is left, and resume. Returns the exit code, and whether the bytes are those
    of a run that nothing happened to."""

    def stop(place: str, signals: str) -> tuple[int, bool]:
        variable, point = PLACES[place]
        command = (MAIN, *settings, f"output_dir={tmp_path / 'out'}")
        ended = forks.run(*command, **{variable: f"{point}={signals}"})
        assert ended.code == 4, ended.output
        assert "Traceback" not in ended.output
        assert "the same command" in ended.output or "recording the results" in ended.output
        committed_shards_are_whole(tmp_path / "out")
        again = forks.run(*command)
        assert again.code == 0, again.output
        lost, doubled = lost_and_doubled(tmp_path / "out", ROWS)
        matrix.saw(signals=1 + signals.count("+"), resumes=1, rows=ROWS, rows_lost=lost, rows_doubled=doubled)
        assert (lost, doubled) == (0, 0)
        return ended.code, files(tmp_path / "out") == files(whole)

    return stop


@pytest.mark.parametrize(("place", "name"), FEW)
def test_a_signal_is_exit_code_4_and_the_run_resumes(stopped_at, place, name):
    assert stopped_at(place, name) == (4, True)


@pytest.mark.faults
@pytest.mark.parametrize(("place", "name"), REST)
def test_so_is_it_everywhere_with_either_signal_and_with_two(stopped_at, place, name):
    assert stopped_at(place, name) == (4, True)


def test_a_second_ctrl_c_leaves_at_once(stopped_at, tmp_path):
    assert stopped_at("decode", "INT+INT") == (4, True)
    attempts = query(tmp_path / "out/state.sqlite", "SELECT status FROM attempts ORDER BY attempt")
    assert attempts == [("running",), ("done",)]  # the first did not get to say how it ended


def test_a_signal_while_the_results_are_recorded_lets_them_be_recorded(stopped_at, tmp_path):
    assert stopped_at("end accounting", "TERM") == (4, True)
    attempts = query(tmp_path / "out/state.sqlite", "SELECT status FROM attempts ORDER BY attempt")
    assert attempts == [("done",)]  # so the second command found everything there


def test_a_signal_while_the_main_thread_holds_a_lock_of_the_interpreter(forks, settings, whole, tmp_path):
    command = (*settings, f"output_dir={tmp_path / 'out'}")
    assert forks.run(f"{MAIN}_in_a_lock", *command).code == 4
    assert forks.run(MAIN, *command).code == 0
    assert files(tmp_path / "out") == files(whole)


def test_a_signal_at_the_very_end_of_a_job_ends_the_sweep(forks, settings, tmp_path):
    sweep = (MAIN, *settings, f"output_dir={tmp_path / 'out'}", "-m", "seed=0,1")
    ended = forks.run(*sweep, **{VARIABLE: f"{Failpoint.MANIFEST_WRITTEN}=TERM"})
    assert ended.code == 4, ended.output
    assert len(list(tmp_path.glob("out-*"))) == 1
    assert forks.run(*sweep).code == 0
    assert len(list(tmp_path.glob("out-*"))) == 2


@pytest.mark.parametrize("name", ["TERM", pytest.param("INT", marks=pytest.mark.faults)])
def test_a_signal_before_anything_is_imported_is_exit_code_4(matrix, tmp_path, name):
    at = {VARIABLE: f"{Failpoint.PROCESS_STARTED}={name}"}
    ended = in_process(PROJECT, "job=quickstart", f"output_dir={tmp_path / 'out'}", **at)
    matrix.saw(signals=1)
    assert (ended.returncode, "the same command" in ended.stderr) == (4, True)
    assert "Traceback" not in ended.stderr


def test_a_kill_while_the_config_is_composed_leaves_nothing(forks, settings, tmp_path):
    command = (MAIN, *settings, f"output_dir={tmp_path / 'out'}")
    assert forks.run(*command, **{VARIABLE: Failpoint.CONFIG_COMPOSED}).code == -signal.SIGKILL
    assert not (tmp_path / "out").exists()
