"""Questions about images: each contender gets the same images, prompts and lengths, and says what it encoded."""

from __future__ import annotations

import io
import json

import pytest
from PIL import Image

from pipeline.api.errors import ExitCode
from pipeline.cli.main import main
from tests.tools.bench.work import spec, with_images
from tools.bench.alternatives import encoded, requests, server_command, with_markers
from tools.bench.contenders import JobContender
from tools.bench.scenarios import SCENARIOS
from tools.bench.workload import CELL

pytestmark = pytest.mark.slow("runs a job with a model that reads images")


def test_a_job_computes_the_tokens_of_the_rows_and_encodes_each_image_once(tmp_path):
    contender = SCENARIOS["images"].contenders[0]
    assert isinstance(contender, JobContender)
    for name in ("first", "second"):  # nor does the second find what the first computed
        (tmp_path / name).mkdir()
        case = with_images(tmp_path / name, rows=6)
        assert main(contender.command(case)[3:]) == ExitCode.DONE
        figures = contender.figures(case, "")
        assert figures.images_encoded == len(case.workload.images) == 3
        assert (figures.prompt_tokens, figures.new_tokens) == (case.workload.prompt_tokens, case.workload.new_tokens)


def test_questions_about_an_image_come_one_after_the_other(tmp_path):
    rows = with_images(tmp_path, rows=5).workload.rows.to_pylist()
    assert [row["image"] for row in rows] == [0, 0, 1, 1, 2]
    assert [row["prompt_text"] for row in rows[:2]] * 2 == [row["prompt_text"] for row in rows[:4]]
    assert rows[0]["prompt_text"] == f"<|im_start|>user\n\ufdd1{rows[0]['prompt']}<|im_end|>\n<|im_start|>assistant\n"
    assert [token == CELL for token in rows[0]["prompt_ids"][:7]] == [False] * 6 + [True]


def test_images_differ_and_need_no_resizing(tmp_path):
    images = with_images(tmp_path).workload.images
    assert len(set(images)) == 3
    assert {Image.open(io.BytesIO(image)).size for image in images} == {(128, 128)}


def test_llama_server_gets_the_images_of_its_rows(tmp_path):
    case = with_images(tmp_path)
    command = server_command(case, 1)
    assert command[command.index("--mmproj") + 1] == case.model.mmproj
    assert "--mmproj" not in server_command(spec(tmp_path), 1)
    bodies = with_markers(case.workload, requests(case), "<marker>")
    given = [body["prompt"] for body in bodies]
    assert len({json.dumps(prompt["multimodal_data"]) for prompt in given}) == 3
    assert given[0]["multimodal_data"] == given[1]["multimodal_data"]
    assert given[0]["prompt_string"] == requests(case)[0]["prompt"].replace("\ufdd1", "<marker>")


def test_an_image_that_its_cache_has_was_not_encoded(tmp_path):
    work = with_images(tmp_path, rows=3).workload
    (first, *_), (end, *_) = ([f(ids) for ids in work.rows["prompt_ids"].to_pylist()] for f in (_first, _end))
    answers = [{"timings": {"cache_n": cached}} for cached in (0, first, end)]
    assert encoded(work, answers) == 2


def _first(ids: list[int]) -> int:
    return ids.index(CELL)


def _end(ids: list[int]) -> int:
    return len(ids) - ids[::-1].index(CELL)
