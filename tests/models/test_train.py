"""The training script, run for a few steps; skipped where the train extra is not installed."""

import json
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the train extra: torch")
pytest.importorskip("tokenizers", reason="needs the train extra: tokenizers")
pytest.importorskip("matplotlib", reason="needs the train extra: matplotlib")

from llama_cpp import Llama  # noqa: E402

from models.tiny import train as training  # noqa: E402
from models.tiny.batches import grouped, padded, training_steps  # noqa: E402
from models.tiny.chat import chat_prompt, load_tokenizer  # noqa: E402
from models.tiny.export import export  # noqa: E402
from models.tiny.model import TinyModel  # noqa: E402
from models.tiny.shape import Shape  # noqa: E402
from models.tiny.tasks import FAMILIES  # noqa: E402

SHAPE = Shape(width=64, layers=2, heads=2, kv_heads=1, head_dim=32, feed_forward=96)
PLAN = training.Plan(steps=4, rows=8, groups=2, warmup=2, evaluate_every=4, save_every=2, evaluation_rows=14)


def losses(out):
    return [json.loads(line)["loss"] for line in (out / "log.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def tokenizer_json(tmp_path_factory):
    """The tokenizer of a run, trained once."""
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    training.prepare_tokenizer(path, PLAN.seed)
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory, tokenizer_json):
    """The directory of a finished run of four steps."""
    out = tmp_path_factory.mktemp("run")
    (out / "tokenizer.json").write_bytes(tokenizer_json.read_bytes())
    training.train(PLAN, out, resume=False, shape=SHAPE)
    return out


def test_a_run_writes_what_it_says(trained):
    assert {path.name for path in trained.iterdir()} == {"checkpoint.pt", "log.jsonl", "loss.png", "tokenizer.json"}
    last = json.loads((trained / "log.jsonl").read_text().splitlines()[-1])
    assert last["step"] == PLAN.steps
    assert set(last["exact"]) == set(FAMILIES)
    assert len(losses(trained)) == PLAN.steps


def test_a_resumed_run_goes_on_as_if_never_interrupted(tokenizer_json, tmp_path):
    constant = replace(PLAN, decay=0.0)
    for name, plans in {"whole": [constant], "parts": [replace(constant, steps=2), constant]}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "tokenizer.json").write_bytes(tokenizer_json.read_bytes())
        for plan in plans:
            training.train(plan, tmp_path / name, resume=True, shape=SHAPE)
    assert len(losses(tmp_path / "parts")) == PLAN.steps
    np.testing.assert_allclose(losses(tmp_path / "parts"), losses(tmp_path / "whole"), rtol=1e-3)


def test_lines_logged_after_the_last_checkpoint_are_dropped_on_resume(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text("".join(f'{{"step": {step}}}\n' for step in range(1, 6)) + '{"step"')
    training.keep_log(path, 3)
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2, 3]


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_the_loss_falls(optimizer, tokenizer_json, tmp_path):
    (tmp_path / "tokenizer.json").write_bytes(tokenizer_json.read_bytes())
    plan = replace(PLAN, steps=12, optimizer=optimizer, save_every=100, evaluate_every=100)
    training.train(plan, tmp_path, resume=False, shape=SHAPE)
    assert losses(tmp_path)[-1] < losses(tmp_path)[0] - 0.5


def test_the_rate_warms_up_holds_and_falls_to_zero():
    plan = training.Plan(steps=100, warmup=10, decay=0.4)
    factors = [plan.factor(step) for step in range(101)]
    assert factors[0] == pytest.approx(0.1)
    assert factors[9:61] == [1.0] * 52
    assert factors[80] == pytest.approx(0.5)
    assert factors[100] == 0.0


def test_only_completions_are_learnt():
    batch = padded([([5, 6, 7, 8, 9], 3), ([5, 6, 7], 2)])
    np.testing.assert_array_equal(batch.weights > 0, [[0, 0, 1, 1], [0, 1, 0, 0]])
    assert batch.targets[0, 2] == 8
    assert batch.targets[1, 1] == 7
    assert batch.tokens == 8


def test_groups_hold_every_row_once_and_steps_repeat(tokenizer_json):
    rows = [([1] * size, 1) for size in (9, 3, 40, 5, 12, 30, 2)]
    assert sum(batch.tokens for batch in grouped(rows, 3)) == sum(len(ids) for ids, _ in rows)
    tokenizer = load_tokenizer(tokenizer_json)
    late = next(training_steps(tokenizer, 1, 7, 8, 2))
    steps = training_steps(tokenizer, 1, 5, 8, 2)
    for _ in range(3):
        again = next(steps)
    assert all(np.array_equal(a.ids, b.ids) for a, b in zip(late, again, strict=True))


def test_llama_cpp_computes_the_same_logits(trained, tmp_path):
    path = tmp_path / "model.gguf"
    told = export(trained / "checkpoint.pt", trained / "tokenizer.json", path, "f32")
    assert told["step"] == PLAN.steps
    state = torch.load(trained / "checkpoint.pt", weights_only=True)
    model = TinyModel(Shape(**state["shape"]))
    model.load_state_dict(state["model"])
    text = chat_prompt("Add 12 and 30.", "Be brief.")
    ids = load_tokenizer(trained / "tokenizer.json").encode(text).ids
    with torch.no_grad():
        wanted = model(torch.tensor([ids]))[0].numpy()
    llama = Llama(str(path), n_ctx=512, n_threads=1, logits_all=True, verbose=False, type_k=0, type_v=0)
    assert llama.tokenize(text.encode(), add_bos=False, special=True) == ids
    llama.eval(ids)
    np.testing.assert_allclose(np.array(llama.scores[: len(ids)]), wanted, atol=1e-3)
    llama.close()
