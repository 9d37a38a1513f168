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
from models.tiny.batches import grouped, padded  # noqa: E402
from models.tiny.blocks import at_random, laid_out  # noqa: E402
from models.tiny.chat import chat_prompt, load_tokenizer  # noqa: E402
from models.tiny.export import export  # noqa: E402
from models.tiny.model import TinyModel  # noqa: E402
from models.tiny.objectives import MaskedBlocks, NextToken  # noqa: E402
from models.tiny.shape import Shape  # noqa: E402
from models.tiny.start import start_of  # noqa: E402
from models.tiny.tasks import FAMILIES  # noqa: E402
from tests.operators.engine.block_diffusion.reference import Qwen3  # noqa: E402

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


@pytest.mark.parametrize("objective", [NextToken(), MaskedBlocks(4)])
def test_groups_hold_every_row_once_and_steps_repeat(objective, tokenizer_json):
    rows = [([1] * size, 1) for size in (9, 3, 40, 5, 12, 30, 2)]
    assert sorted(len(ids) for group in grouped(rows, 3) for ids, _ in group) == [2, 3, 5, 9, 12, 30, 40]
    tokenizer = load_tokenizer(tokenizer_json)
    late = next(objective.steps(tokenizer, 1, 7, 8, 2))
    steps = objective.steps(tokenizer, 1, 5, 8, 2)
    for _ in range(3):
        again = next(steps)
    assert all(np.array_equal(a.ids, b.ids) for a, b in zip(late, again, strict=True))


def test_of_each_block_with_something_to_make_some_is_masked():
    rng = np.random.default_rng(1)
    counts = set()
    for _ in range(50):
        row = at_random(
            ([7] * 14, 6), 4, filler=0, rng=rng
        )  # 6 and 7 are to be made, 8 to 11, 12 and 13 and two fillers
        assert list(row.ids) == [7] * 14 + [0, 0]
        assert not row.masked[:6].any()
        np.testing.assert_array_equal(row.weights > 0, row.masked)
        np.testing.assert_allclose(row.weights.reshape(4, 4).sum(axis=1), np.array([0, 2, 4, 4]) / 10**0.5, rtol=1e-6)
        counts.add(int(row.masked[8:12].sum()))
    assert counts == {1, 2, 3, 4}


@pytest.mark.parametrize("objective", [NextToken(), MaskedBlocks(1), MaskedBlocks(4), MaskedBlocks(8)])
def test_every_token_of_a_completion_is_asked_for_once(objective, tokenizer_json):
    rows = [(list(range(10, 10 + size)), start) for size, start in ((9, 3), (17, 16), (24, 8))]
    asked: list[list[int]] = [[], [], []]
    for batch in objective.asked(load_tokenizer(tokenizer_json), rows):
        for row, place in np.argwhere(batch.weights):
            asked[row].append(batch.targets[row, place])
    assert [sorted(each) for each in asked] == [ids[start:] for ids, start in rows]


def test_masked_blocks_see_what_the_reference_of_block_diffusion_sees(trained, tmp_path):
    """Each noisy block has the logits of a text that ends with it, the blocks before it clean."""
    path, length = tmp_path / "model.gguf", 4
    export(trained / "checkpoint.pt", trained / "tokenizer.json", path, "f32")
    state = torch.load(trained / "checkpoint.pt", weights_only=True)
    model = TinyModel(Shape(**state["shape"]))
    model.load_state_dict(state["model"])
    rng = np.random.default_rng(2)
    rows = [
        at_random((rng.integers(4, 2000, size).tolist(), start), length, 0, rng) for size, start in ((18, 6), (9, 1))
    ]
    batch = laid_out(rows, length, mask=3)
    assert batch.view is not None
    with torch.no_grad():
        states = model.hidden(*(torch.from_numpy(x) for x in (batch.ids, batch.view.positions, batch.view.sees)))
        found = (states @ model.embed.weight.T).numpy()
    reference = Qwen3(path)
    for index, row in enumerate(rows):
        size, first = len(row.ids), int(np.flatnonzero(row.masked)[0]) // length
        for block in range(first, size // length):
            ids = row.ids[: (block + 1) * length].copy()
            ids[block * length :] = np.where(row.masked, 3, row.ids)[block * length : (block + 1) * length]
            blocks = np.arange(len(ids)) // length
            wanted = reference.logits(ids, blocks[:, None] >= blocks[None])[-length:]
            at = size + (block - first) * length
            np.testing.assert_allclose(found[index, at : at + length], wanted, atol=1e-3)


def test_a_run_goes_on_from_a_file(trained, tmp_path):
    path = tmp_path / "model.gguf"
    export(trained / "checkpoint.pt", trained / "tokenizer.json", path, "f32")
    state = torch.load(trained / "checkpoint.pt", weights_only=True)
    start = start_of(path)
    assert start.shape == replace(SHAPE, rope_base=start.shape.rope_base, norm_eps=start.shape.norm_eps)
    assert (start.shape.rope_base, start.shape.norm_eps) == pytest.approx((SHAPE.rope_base, SHAPE.norm_eps))
    for name, values in state["model"].items():
        np.testing.assert_array_equal(start.tensors[name], values.numpy())
    text = "a\nb 42 \u00fc<|im_end|>"
    assert start.tokenizer.encode(text).ids == load_tokenizer(trained / "tokenizer.json").encode(text).ids
    plan = replace(PLAN, steps=12, save_every=100, evaluate_every=100)
    training.train(plan, tmp_path / "out", False, None, MaskedBlocks(4), start)
    assert losses(tmp_path / "out")[-1] < losses(tmp_path / "out")[0]


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
