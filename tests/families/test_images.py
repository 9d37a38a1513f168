"""Jobs with models of every family that reads images: cells of prompts and texts are those of transformers, for images
as they come, resized, and two in a prompt."""

from __future__ import annotations

import base64
import io
import json
import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from PIL import Image

from pipeline.api.errors import ExitCode
from pipeline.cli.main import main
from tests.families.image_configs import FAMILIES, MARK, PROMPTS, picture, pictures_of
from tests.families.make import LARGEST, NEW_TOKENS
from tests.families.make_images import FOLDER, LEAST_GAP, LEAST_TOKENS
from tests.families.test_families import EXACT_WAYS, RULES, data
from tests.operators.engine.rules import scheduled
from tests.sets import often

pytestmark = pytest.mark.slow("runs a job with a model of each family that reads images")

REFERENCES = {name: json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8")) for name in FAMILIES}


def parts(prompt: dict[str, Any]) -> list[dict[str, Any]]:
    """The parts of the user's message."""
    texts = prompt["text"].split(MARK)
    made: list[dict[str, Any]] = [{"type": "text", "text": texts[0]}] if texts[0] else []
    for size, text in zip(prompt["pictures"], texts[1:], strict=True):
        png = io.BytesIO()
        Image.fromarray(picture(*size)).save(png, "PNG")
        url = f"data:image/png;base64,{base64.b64encode(png.getvalue()).decode()}"
        made += [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": text}]
    return made


def job(family: str, out: Path, prompts: list[dict[str, Any]], *settings: str) -> list[str]:
    rows = [{"chat": [{"role": "user", "content": parts(prompt)}]} for prompt in prompts]
    file = out.with_suffix(".jsonl")
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return [
        *("job=generate", "model=gguf", f"model.path={FOLDER / family}.gguf", f"output_dir={out}", "progress=none"),
        *(f"model.mmproj={FOLDER}/mmproj-{family}.gguf", f"data.path={file}", "data.messages_column=chat"),
        *("sampling=greedy", f"sampling.max_tokens={NEW_TOKENS}", f"sampling.min_tokens={NEW_TOKENS}"),
        *("output.completion_ids=true", *settings),
    ]


@pytest.mark.parametrize("family", FAMILIES)
def test_cells_and_ids_equal_those_of_transformers(family, tmp_path):
    exact = ("runtime.kv_type=f32", "runtime.flash_attention=false")
    assert main(job(family, tmp_path / "out", REFERENCES[family]["prompts"], *exact)) == ExitCode.DONE
    reference = REFERENCES[family]["prompts"]
    cells = [sum(cell[0] if isinstance(cell, list) else 1 for cell in prompt["cells"]) for prompt in reference]
    tokens = pq.read_table(tmp_path / "out/metrics/rows.parquet").sort_by("row")["prompt_tokens"]
    assert tokens.to_pylist() == cells
    found = pq.read_table(tmp_path / "out/data").sort_by("row")["completion_ids"]
    assert found.to_pylist() == [prompt["ids"] for prompt in reference]


@pytest.mark.parametrize("family", often(list(FAMILIES), "qwen2vl"))
def test_a_dry_run_counts_the_cells_of_transformers(family, tmp_path, capsys):
    """By the sizes of images alone."""
    prompts = REFERENCES[family]["prompts"]
    assert main(job(family, tmp_path / "out", prompts, "dry_run=true")) == ExitCode.DONE
    shown = re.findall(r"^generate, prompt \d \(([\d,]+) tokens\)", capsys.readouterr().out, re.MULTILINE)
    cells = [[cell[0] if isinstance(cell, list) else 1 for cell in each["cells"]] for each in prompts[:3]]
    assert [int(count.replace(",", "")) for count in shown] == [sum(each) for each in cells]


@pytest.mark.laws
@pytest.mark.parametrize("family", FAMILIES)
def test_no_way_changes_a_byte_of_the_data(family, tmp_path):
    """Rows with the same images under other questions, with the same question for other images, and in other orders."""
    images = [pictures_of(family, i) for i in range(len(PROMPTS))]
    asked = [f"{MARK}Which?", f"{MARK}What-is-there-on-it,and-where?", f"Tell-me:{MARK}!"]
    prompts = [{"text": text, "pictures": some[:1]} for some in images for text in asked]
    prompts += [{"text": f"{MARK}or{MARK}?", "pictures": pair} for pair in (images[2], images[2][::-1])]
    found = set()
    for i, (way, settings) in enumerate({"as it is": (), **EXACT_WAYS}.items()):
        with scheduled(**RULES.get(way, {})):
            assert main(job(family, tmp_path / str(i), prompts, *settings)) == ExitCode.DONE
        found.add(tuple(data(tmp_path / str(i)).items()))
    assert len(found) == 1


def test_a_reference_says_enough_and_rests_on_no_tie():
    for family, reference in REFERENCES.items():
        prompts = reference["prompts"]
        assert [(each["text"], [*map(tuple, each["pictures"])]) for each in prompts] == [
            (text, pictures_of(family, i)) for i, (text, _) in enumerate(PROMPTS)
        ]
        assert {len(each["ids"]) for each in prompts} == {NEW_TOKENS}
        assert min(len(set(each["ids"])) for each in prompts) >= LEAST_TOKENS
        assert prompts[0]["ids"] != prompts[1]["ids"]  # one text, two images
        assert reference["least_gap"] >= LEAST_GAP
        assert all((FOLDER / f"{prefix}{family}.gguf").stat().st_size <= LARGEST for prefix in ("", "mmproj-"))
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 3_000_000
