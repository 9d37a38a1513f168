"""What `calibrate` leaves beside the rows: it describes these rows, or says that it does not, and goes with them."""

from __future__ import annotations

import json

import pytest

from pipeline.api.errors import ExitCode
from pipeline.cli.main import main
from pipeline.results.reader import read_results
from pipeline.results.report.page import page
from pipeline.run_dir.names import CALIBRATION, CARD, LABELS
from tests.pipeline.labels.judged_runs import judged, labels


@pytest.fixture
def out(tmp_path):
    """A run of a model without weights, with a card, whose finish reasons are its verdicts; calibrated."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"id": f"p{i}", "prompt": f"What is {i}?"}) + "\n" for i in range(6)))
    return tmp_path / "out"


def run(out, *more: str) -> int:
    given = (f"data.path={out.parent / 'prompts.jsonl'}", f"output_dir={out}", "progress=none", "output.card=true")
    return main(["job=generate", "model=fake", *given, "data.id_column=id", "sampling.max_tokens=4", *more])


def calibrate(out) -> str:
    file = labels(out.parent / "l.jsonl", [{"id": f"p{i}", "label": "length"} for i in range(6)])
    assert main(["calibrate", str(out), "--labels", str(file), "--verdict", "finish_reason"]) == ExitCode.DONE
    return (out / CARD).read_text(encoding="utf-8")


def test_the_card_of_a_run_says_what_people_would_and_the_next_attempt_writes_the_same(out, capsys):
    assert run(out) == ExitCode.DONE
    plain = (out / CARD).read_text(encoding="utf-8")
    card = calibrate(out)
    assert "People would have agreed with `finish_reason` in 83.3 % (43.6 to 97.0 % with a confidence of 95 %)" in card
    assert "by 6 labels of 1 reviewer." in card
    capsys.readouterr()
    assert card == calibrate(out)
    assert "replaced    figures of finish_reason by 6 labels of l.jsonl" in capsys.readouterr().out
    assert run(out) == ExitCode.DONE
    assert (out / CARD).read_text(encoding="utf-8") == card
    (out / CALIBRATION).unlink()
    assert run(out) == ExitCode.DONE
    assert (out / CARD).read_text(encoding="utf-8") == plain


def test_a_card_that_a_user_has_edited_stays(out):
    assert run(out) == ExitCode.DONE
    edited = (out / CARD).read_text(encoding="utf-8").replace("# ", "# My own ", 1)
    (out / CARD).write_text(edited, encoding="utf-8")
    assert calibrate(out) == edited


def test_a_run_that_is_overwritten_takes_its_calibration_with_it(out):
    assert run(out) == ExitCode.DONE
    calibrate(out)
    assert (out / LABELS).exists()
    assert main(["verify", str(out)]) == ExitCode.DONE
    assert run(out, "overwrite=true", "seed=1") == ExitCode.DONE
    assert not {CALIBRATION, LABELS} & {path.name for path in out.iterdir()}
    assert "People would" not in (out / CARD).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("rows", "run_id", "why"), [(5, "r1", "data had 4 rows and has 5 now"), (4, "r2", "another run")]
)
def test_figures_of_rows_that_are_no_longer_these_are_said_to_be(tmp_path, rows, run_id, why):
    results = judged(tmp_path / "out", [{"verdict": "yes"}] * 4)
    file = labels(tmp_path / "l.jsonl", [{"row": i, "label": "yes"} for i in range(4)])
    assert main(["calibrate", str(tmp_path / "out"), "--labels", str(file), "--verdict", "verdict"]) == ExitCode.DONE
    assert "Calibrate again" not in page(results)
    kept = (tmp_path / "out" / CALIBRATION).read_bytes()
    judged(tmp_path / "out", [{"verdict": "yes"}] * rows, run=run_id)
    (tmp_path / "out" / CALIBRATION).write_bytes(kept)
    text = page(read_results(tmp_path / "out"))
    assert "Calibrate again" in text
    assert why in text
