"""The card of a finished run says what the run was, the same each time, and gives way to what its user wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from operators.settings import OutputSettings
from pipeline.api.errors import ExitCode
from pipeline.config.config_yaml import settings_from
from pipeline.publish.dataset_card import _facts, _Folder, _front
from pipeline.python.compose import settings_from as composed_settings
from pipeline.python.job import Job
from pipeline.run_dir.names import CARD
from tests.pipeline.damage import job, run
from tests.sets import often_cases


def front(directory: Path) -> dict[str, Any]:
    text = (directory / CARD).read_text()
    found: dict[str, Any] = yaml.safe_load(text.split("---\n")[1])
    return found


def with_card(directory: Path, **card: Any):
    return job(directory, output=OutputSettings(card=card or True))


def test_of_csv_it_states_no_types_since_pandas_has_no_null_among_whole_numbers():
    columns = {"row": "int64", "x": "int64"}
    folders = [_Folder("data", suffix, columns) for suffix in ("jsonl.gz", "csv", "csv.gz", "defused.csv")]
    assert ["dataset_info" in _front("squares", None, False, 1, [folder]) for folder in folders] == [True, *[False] * 3]


def test_it_has_what_the_hub_reads_and_what_people_ask(tmp_path):
    run(with_card(tmp_path / "out", license="cc-by-4.0", text="Squares, by hand."))
    assert front(tmp_path / "out") == {
        "license": "cc-by-4.0",
        "pretty_name": "squares",
        "size_categories": ["n<1K"],
        "configs": [{"config_name": "default", "data_files": [{"split": "train", "path": "data/*.parquet"}]}],
        "dataset_info": [
            {"config_name": "default", "features": [{"name": n, "dtype": "int64"} for n in ("row", "x", "y")]}
        ],
    }
    text = (tmp_path / "out" / CARD).read_text()
    for said in ("Squares, by hand.", "| `y` | `int64` |", "| prompts read | 45 |", "| rows in data/ | 43 |"):
        assert said in text
    assert "| square | error | unlucky number | 2 |" in text
    assert "| seed | `0` |" in text
    assert "nodes.square.op.bad:\n- 4\n- 41\n" in text


def facts(job: str | Job, **settings: Any) -> dict[str, str]:
    composed = composed_settings(job, {"model": "tiny", "data.path": "q.jsonl", **settings}, str)
    return dict(_facts(composed, generated=True))


def test_it_states_what_each_step_used():
    """It had the job's own temperature and prompt where all steps had others."""
    steps = Job("steps").step("answer", prompt="{{ q }}", system="Be brief", sampling={"temperature": 1.0})
    found = facts(steps.step("verdict", prompt="Right? {{ answer }}", choices=["yes", "no"]))
    assert found["prompt of answer"] == "`system: Be brief; user: {{ q }}`"
    assert found["prompt of verdict"] == "`Right? {{ answer }}`"
    assert found["sampling.temperature of answer"] == "`1.0`"
    assert found["sampling.temperature of verdict"] == "`0.0`"
    assert "sampling.temperature" not in found
    plain = facts("generate", **{"sampling.temperature": 0.5})
    assert (plain["sampling.temperature"], plain["prompt"]) == ("`0.5`", "the chat template of the model")
    assert facts("generate", **{"data.prompt_template": "Hi {{ q }}"})["prompt"] == "`Hi {{ q }}`"
    assert "long rows" not in plain
    scaled = facts(
        "generate", **{"runtime.rope": {"scaling": "yarn", "factor": 4}, "runtime.max_sequence_tokens": 2048}
    )
    assert scaled["long rows"] == ("rows up to 2048 tokens: RoPE scaling yarn x4 beyond what the model was trained for")


def test_equal_runs_have_equal_cards_and_no_path_of_this_machine(tmp_path):
    path = str(tmp_path / "secret" / "numbers")
    for name in ("a", "b"):
        settings = with_card(tmp_path / name)
        settings.nodes["numbers"].op["path"] = path
        run(settings)
    assert (tmp_path / "a" / CARD).read_bytes() == (tmp_path / "b" / CARD).read_bytes()
    text = (tmp_path / "a" / CARD).read_text()
    assert str(tmp_path) not in text
    assert "nodes.numbers.op.path: numbers" in text


def test_the_same_command_with_another_license_writes_it_anew_unless_it_was_edited(tmp_path):
    path = tmp_path / "out" / CARD
    run(with_card(tmp_path / "out"))
    assert "license" not in front(tmp_path / "out")
    run(with_card(tmp_path / "out", license="mit"))
    assert front(tmp_path / "out")["license"] == "mit"
    path.write_text(path.read_text().replace("# squares", "# My squares"))
    edited = path.read_text()
    settings = with_card(tmp_path / "out", license="apache-2.0")
    run(settings)
    assert path.read_text() == edited
    settings.overwrite = True
    run(settings)
    assert path.read_text() == edited


@pytest.mark.parametrize(
    ("settings", "written"),
    often_cases(
        [
            ({}, False),
            ({"card": {"license": None, "text": None}}, False),
            ({"card": True}, True),
            ({"card": {"license": "mit"}}, True),
            ({"card": {"text": "Mine."}}, True),
            ({"publish": "file://"}, True),
            ({"split_by": "split"}, True),
            ({"publish": "file://", "card": False}, False),
            ({"publish": "file://", "card": None}, False),
        ],
        {},
        {"card": True},
        {"publish": "file://"},
    ),
)
def test_it_is_written_where_results_are_published_and_where_it_is_asked_for(tmp_path, settings, written):
    if "publish" in settings:
        settings = {**settings, "publish": f"file://{tmp_path}/there"}
    output = OutputSettings(**settings)
    run(job(tmp_path / "out", output=output))
    assert (tmp_path / "out" / CARD).exists() == written
    again = settings_from((tmp_path / "out/config.yaml").read_text(), tmp_path / "out").output
    assert again.card_settings() == output.card_settings()


def test_a_run_that_was_finished_without_one_gets_it_from_the_same_command(tmp_path):
    for output in (OutputSettings(), OutputSettings(card=True)):
        assert run(job(tmp_path / "out", output=output)) is ExitCode.DONE
        assert (tmp_path / "out" / CARD).exists() == (output.card is True)
