"""The small vision model that ships: what its pictures are, and what it reads off held-out ones, through the engine."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from random import Random

import numpy as np
import pyarrow.parquet as pq
import pytest

from models.tiny.vision.draw import SIDE, drawn
from models.tiny.vision.pictures import write_picture
from models.tiny.vision.scenes import COLOURS, KINDS, QUESTIONS, SHAPES, WORDS, Scene, drawn_scene, families, right
from pipeline import PROJECT
from pipeline.cli.main import main

MMPROJ = PROJECT / "models/tiny/vision/mmproj-tiny-f16.gguf"
PICTURES = 60
READ = 0.9
"""Of the held-out questions that are answered right."""


def asked_of(folder: Path, seed: int, number: int) -> list[tuple[Scene, str, str]]:
    """Write pictures of held-out scenes, the kinds in turn, and a question about each; return what they show, what is
    asked for, and the answer."""
    rng, rows, known = Random(seed), [], []
    for place in range(number):
        scene = drawn_scene(rng, KINDS[place % len(KINDS)], "heldout")
        family = families(scene.kind)[place // len(KINDS) % 3]
        write_picture(scene, rng.getrandbits(32), folder / f"{place}.png", noise=8.0)
        rows.append({"id": place, "image": f"{place}.png", "prompt": rng.choice(QUESTIONS[family])})
        known.append((scene, family, scene.answer(family)))
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return known


@pytest.mark.slow("runs a job with the models that ship")
def test_it_reads_held_out_pictures(tmp_path):
    known = asked_of(tmp_path, 77, PICTURES)
    settings = (
        "data.image_column=image",
        "data.id_column=id",
        "sampling.max_tokens=24",
        "progress=none",
        "report=false",
    )
    job = ("job=generate", "model=tiny_vision", f"data.path={tmp_path}/rows.jsonl", f"output_dir={tmp_path}/out")
    assert main([*job, *settings]) == 0
    rows = sorted(pq.read_table(tmp_path / "out/data").to_pylist(), key=lambda row: row["id"])
    told = [row["completion"] for row in rows]
    correct = [right(text, answer) for text, (_, _, answer) in zip(told, known, strict=True)]
    wrong = [(*each, text) for each, text, ok in zip(known, told, correct, strict=True) if not ok]
    assert sum(correct) >= READ * PICTURES, wrong
    asked = Counter(family for _, family, _ in known)
    assert set(asked) == set(QUESTIONS)
    for family, number in asked.items():
        assert sum(each[1] == family for each in wrong) <= number / 3, wrong


def test_the_file_is_small():
    assert MMPROJ.stat().st_size <= 1_000_000


def test_a_scene_is_trained_on_or_held_out():
    contents = {"word": WORDS, "shape": SHAPES}
    every = [Scene(kind, content, colour) for kind in contents for content in contents[kind] for colour in COLOURS]
    held = [scene for scene in every if scene.split == "heldout"]
    assert 0.02 < len(held) / len(every) < 0.1
    assert {scene.content for scene in held if scene.kind == "shape"} < set(SHAPES)
    trained = {drawn_scene(Random(seed), "number", "train").content for seed in range(300)}
    assert not trained & {drawn_scene(Random(seed), "number", "heldout").content for seed in range(300)}


def test_a_picture_is_the_same_for_the_same_seed_and_its_letters_are_where_it_says():
    for scene in (Scene("word", "camel", "red"), Scene("number", "407", "white"), Scene("shape", "star", "black")):
        (pixels, places), (again, _) = (drawn(scene, Random(3)) for _ in range(2))
        assert pixels.shape == (SIDE, SIDE, 3)
        assert pixels.dtype == np.uint8
        np.testing.assert_array_equal(pixels, again)
        assert set(places.ravel()) <= set(range(len(scene.content) + 1))
        assert (places.max() > 0) == (scene.kind != "shape")


def test_an_answer_is_right_in_any_case_with_or_without_a_stop():
    assert right(" A red circle.", "A red circle.")
    assert right("RED", "red")
    assert not right("red circle", "red")
