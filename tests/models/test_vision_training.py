"""The training of the small vision model, run for a few steps; skipped where the train extra is not installed."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the train extra: torch")
pytest.importorskip("tokenizers", reason="needs the train extra: tokenizers")
pytest.importorskip("matplotlib", reason="needs the train extra: matplotlib")

from models.tiny.model import TinyModel  # noqa: E402
from models.tiny.start import start_of  # noqa: E402
from models.tiny.vision import teacher as teaching  # noqa: E402
from models.tiny.vision import train as training  # noqa: E402
from models.tiny.vision.batches import CELL, LETTERS, asked, pictures_of, told_of  # noqa: E402
from models.tiny.vision.draw import drawn  # noqa: E402
from models.tiny.vision.export import export  # noqa: E402
from models.tiny.vision.frozen import FrozenText  # noqa: E402
from models.tiny.vision.network import Encoder, VisionShape  # noqa: E402
from models.tiny.vision.scenes import COLOURS, KINDS, SHAPES, WORDS, Scene  # noqa: E402
from models.tiny.vision.steps import TEXT_MODEL, Rate  # noqa: E402
from operators.llama.model import load  # noqa: E402
from operators.settings import ModelSettings  # noqa: E402

SHAPE = VisionShape(width=32, layers=2, heads=1, feed_forward=48, joined=32, gated=32)
PLAN = training.Plan(Rate(4, 2e-3, 2, 0.0), reading=2, rows=4, evaluate_every=4, save_every=2, evaluation_rows=6)


def losses(out):
    return [
        {k: v for k, v in json.loads(line).items() if k != "cpu_s"}
        for line in (out / "log.jsonl").read_text().splitlines()
    ]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The directory of finished runs of four steps."""
    out = tmp_path_factory.mktemp("run")
    teaching.teach(teaching.Lesson(Rate(4, 3e-3, 2), rows=4, evaluate_every=4), SHAPE.cells, out)
    training.train(PLAN, out, False, out / "teacher.pt", shape=SHAPE)
    return out


def test_a_run_learns_from_the_teacher_and_then_through_the_text_model(trained):
    steps = losses(trained)
    assert [("taught" in step, "answer" in step) for step in steps] == [(True, False)] * 2 + [(False, True)] * 2
    assert set(steps[-1]["exact"]) == {row.family for row in asked(0, PLAN.evaluation_rows, "heldout")}


def test_a_resumed_run_goes_on_as_if_never_interrupted(trained, tmp_path):
    half = replace(PLAN, rate=replace(PLAN.rate, steps=2), reading=0)
    for plan in (half, PLAN):
        training.train(plan, tmp_path, True, trained / "teacher.pt", shape=SHAPE)
    for found, wanted in zip(losses(tmp_path), losses(trained), strict=True):
        assert found["told"] == pytest.approx(wanted["told"], rel=1e-2)


def test_llama_cpp_computes_the_same_cells(trained, tmp_path):
    path = tmp_path / "mmproj.gguf"
    assert export(trained / "checkpoint.pt", path) == PLAN.rate.steps
    encoder = Encoder(SHAPE)
    encoder.load_state_dict(torch.load(trained / "checkpoint.pt", weights_only=True)["encoder"])
    model = load(ModelSettings(path=str(TEXT_MODEL), mmproj=str(path)))
    assert model.vision is not None
    for number, scene in enumerate((Scene("word", "fox", "red"), Scene("shape", "ring", "pink"))):
        pixels, _ = drawn(scene, Random(number))
        with torch.no_grad():
            wanted = encoder(torch.from_numpy(pixels[None]))[0][0].numpy()
        (found,) = model.vision.encode(pixels)
        np.testing.assert_allclose(found.embeddings, wanted, atol=1e-3)
    model.close()


def test_the_frozen_text_model_has_the_gradients_of_the_other_one():
    """In bfloat16."""
    text, start = FrozenText(TEXT_MODEL), start_of(TEXT_MODEL)
    model = TinyModel(start.shape).requires_grad_(False)
    model.load_state_dict({name: torch.from_numpy(values) for name, values in start.tensors.items()})
    rows = asked(1, 3, "train")
    batch = text.asked_about(rows, 4)
    gradients = []
    for states in (None, model):
        cells = (torch.sin(torch.arange(3 * 4 * 256.0)).view(3, 4, 256) * 0.2).requires_grad_(True)
        if states is None:
            loss = text.answer_loss(cells, batch)
        else:
            ids = torch.from_numpy(batch.ids)
            x = model.embed(ids.clamp(min=0)).masked_scatter((ids == CELL)[:, :, None], cells)
            tokens = x.shape[1]
            bias = torch.full((tokens, tokens), float("-inf")).triu(1)
            for block in model.blocks:
                x = block(x, model.cos[:tokens], model.sin[:tokens], bias)
            weights = torch.from_numpy(batch.weights)
            logits = model.norm(x) @ model.embed.weight.T
            each = torch.nn.functional.cross_entropy(
                logits.transpose(1, 2), torch.from_numpy(batch.targets).clamp(min=0), reduction="none"
            )
            loss = (each * weights).sum() / weights.sum()
        loss.backward()
        gradients.append(cells.grad.flatten())
    assert torch.cosine_similarity(*gradients, dim=0) > 0.99


def test_helpers_are_told_what_the_picture_shows():
    rows = asked(2, 40, "train")
    told, batch = told_of(rows), pictures_of(rows)
    for index, row in enumerate(rows):
        kind, colour, shape, word, *digits = told[index]
        scene = row.scene
        assert KINDS[kind] == scene.kind
        assert COLOURS[colour] == scene.colour
        shown = "".join(str(digit) for digit in digits if digit < 10)
        shown += (*SHAPES, "")[shape] + (*WORDS, "")[word]
        assert shown == scene.content
        letters = {
            (place, LETTERS[letter]) for place, letter in zip(batch.places[index], batch.letters[index], strict=True)
        }
        assert letters <= {(0, " "), *enumerate(scene.content, 1)}
