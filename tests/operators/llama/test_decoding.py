"""The engine on real llama.cpp: ids as llama-cpp-python gives them, and bits that do not depend on the neighbours."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from functools import partial
from pathlib import Path

import llama_cpp
import numpy as np
import pytest

from operators.engine.backend.batch import DecodeFailed
from operators.engine.backend.images import ImageSpan
from operators.engine.backend.interface import Decoder, Logits
from operators.engine.loop.engine import Engine
from operators.engine.loop.thread import EngineThread
from operators.engine.sampling.params import SamplingParams
from operators.engine.sampling.sampler import Sampler
from operators.engine.sequence import Sequence
from operators.engine.strategies.autoregressive import Autoregressive
from operators.engine.strategies.base import Strategy
from operators.engine.strategies.speculative.lookup import DraftedRow
from operators.generation.canary import canary
from operators.llama.contexts.context_pool import ContextPool
from operators.llama.model import LlamaModel
from operators.settings import DecodeSettings, ModelSettings
from operators.settings.model import KERNELS
from operators.settings.runtime import EngineSettings
from pipeline.api.meter import StageMeter
from tests.operators.engine.fixtures import check_pool, worker_on
from tests.operators.llama.kernels.test_graphs import padded
from tests.sets import often
from tools.models import make_model
from tools.models.make_model import write_model
from tools.models.shapes import Shape

pytestmark = pytest.mark.slow("decodes with a model of each family")

LENGTHS = (5, 1, 2, 31, 33, 60, 63, 64, 65, 66, 100, 127, 129, 300, 511, 512, 513, 514, 700)
"""Both sides of the 64-token kernel and of the cut at n_ubatch."""


WARM = SamplingParams(temperature=1.0, top_k=40)
COUNTS: dict[str, float] = {}
MOST_DRAFTED = 7
"""The totals of the last `complete`."""

WHOLLY_OURS = ("q8_0", "q4_k_m", "q6_k")
USUAL = ("f32", "q8_0", "q4_k_m")
RARER = ("bf16", "f16", "q4_0", "q2_k", "q3_k_m", "q5_k_m", "q6_k")
EXACT = [*USUAL, *(pytest.param(kind, marks=pytest.mark.laws, id=kind) for kind in RARER)]


@pytest.fixture(scope="module", params=["f32", "q8_0"])
def model_file(request, tmp_path_factory) -> Path:
    """A model of each type; of some all matrices are ours, so that a decoder is exact."""
    path = tmp_path_factory.mktemp("model") / f"tiny-{request.param}.gguf"
    with pytest.MonkeyPatch.context() as patch:
        if request.param in WHOLLY_OURS:
            patch.setattr(make_model, "builtin_vocabulary", padded)
        write_model(path, file_type=request.param, shape="tiny-256" if "_k" in request.param else "tiny")
    return path


@pytest.fixture(scope="module", params=often(KERNELS, "auto"))
def model(model_file, request):
    loaded = LlamaModel(ModelSettings(path=str(model_file), kernels=request.param))
    yield loaded
    loaded.close()


def texts(count: int) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.integers(0, 300, LENGTHS[i % len(LENGTHS)]).astype(np.int32) for i in range(count)]


def compute(decoder: Decoder, ids: np.ndarray, start: int = 0, slot: int = 0, outputs: int = 1) -> Logits:
    """A call with `ids` alone. `outputs`: as in BatchBuffer.add_spans."""
    decoder.batch.clear()
    decoder.batch.add_spans([ids], [start], [slot], [outputs])
    return decoder.decode()


def complete(
    model: LlamaModel,
    prompts: Seq[np.ndarray],
    order: Seq[int],
    params: SamplingParams,
    max_tokens: int | None = None,
    make: Callable[[Decoder, Sampler], Strategy] | None = None,
    images: Seq[tuple[ImageSpan, ...]] | None = None,
    **settings,
) -> tuple[dict[object, list[int]], dict[tuple[object, int], bytes]]:
    """Tokens of each prompt, and the bytes of the logits by (prompt, step). `max_tokens`: by default 3 to 11. `make`:
    makes a strategy that drafts, on a decoder and with a sampler; default: Autoregressive. `images`: of each prompt."""
    engine_settings = EngineSettings(max_sequence_tokens=min(1024, model.n_ctx_train), **settings)
    bits: dict[tuple[object, int], bytes] = {}

    class Watching(Sampler):
        def draw(self, logits, rows, places=None):
            for i in range(len(rows)) if places is None else places:
                bits[rows[i].handle, len(rows[i].tokens)] = logits[i].tobytes()
            return super().draw(logits, rows, places)

        def draw_ahead(self, lines, rows):
            drawn = super().draw_ahead(lines, rows)
            for row, own in zip(rows, lines if drawn is not None else (), strict=drawn is not None):
                first = row.slot.num_cached - len(row.prompt)
                # Those behind a wrong draft come again in a later call, or behind the end of the row.
                bits.update({(row.handle, first + i): line.tobytes() for i, line in enumerate(own)})
            return drawn

    decoder, give_back = model.lease(engine_settings, draft=0 if make is None else MOST_DRAFTED)
    make = make or (lambda decoder, sampler: Autoregressive(DecodeSettings(), decoder, model, sampler=sampler))
    worker = worker_on(decoder, engine_settings, lambda decoder: make(decoder, Watching()))
    engine = Engine(worker, EngineThread())
    client = engine.connect(StageMeter("node"), 1, 10_000, lambda: None, steps=False)
    kind = DraftedRow if worker.strategy.drafts else Sequence
    own = images or [()] * len(prompts)
    client.submit(
        [kind(i, prompts[i], params, seed=i, max_tokens=max_tokens or 3 + i % 9, images=own[i]) for i in order]
    )
    client.end()
    while worker.scheduler.runnable:
        worker.step()
        check_pool(worker.scheduler.slots)
    COUNTS.clear()
    COUNTS.update(engine.totals())
    tokens = {row.handle: row.tokens for row in client.collect()}
    give_back()
    return tokens, {(row, step): line for (row, step), line in bits.items() if step < len(tokens[row])}


@pytest.mark.parametrize(
    ("model_file", "params"),
    # How tokens are drawn changes what is computed next, and not how: once each is enough.
    [
        pytest.param("q8_0", WARM, id="q8_0"),
        *(pytest.param(k, WARM, id=k, marks=pytest.mark.laws) for k in (*USUAL, *RARER) if k != "q8_0"),
        pytest.param("f32", SamplingParams(), id="f32-greedy", marks=pytest.mark.laws),
    ],
    indirect=["model_file"],
)
def test_logits_are_the_same_to_the_bit_in_any_company(model, model_file, params):
    if model.doubt(EngineSettings()) == "K-quants on a processor with AMX":
        pytest.skip("not promised: K-quants on a processor with AMX")
    prompts = texts(38)
    assert model.doubt(EngineSettings()) is None
    decoder, give_back = model.lease(EngineSettings())
    assert decoder.shape.exact == (model.packed.version > 0 and model_file.stem.removeprefix("tiny-") in WHOLLY_OURS)
    give_back()
    shuffled = np.random.default_rng(1).permutation(38).tolist()
    expected = complete(model, prompts, range(38), params, slots=16)
    for slots, order in [(1, range(38)), (2, range(38)), (7, shuffled), (32, shuffled)]:
        assert complete(model, prompts, order, params, slots=slots) == expected, f"{slots} slots"


def check_canary(model) -> None:
    found = set()
    for slots, n_ubatch in ((1, 128), (2, 512), (16, 256), (16, 256)):
        settings = EngineSettings(slots=slots, n_ubatch=n_ubatch, n_batch=512, max_sequence_tokens=256, threads=1)
        decoder, give_back = model.lease(settings)
        found.add(canary(decoder, model.n_vocab))
        assert not decoder.batch.n_tokens
        compute(decoder, np.zeros(9, np.int32))
        give_back()
    assert len(found) == 1
    assert None not in found


@pytest.mark.parametrize("model_file", EXACT, indirect=True)
def test_a_canary_does_not_depend_on_slots_and_leaves_them_empty(model):
    if model.doubt(EngineSettings()) == "K-quants on a processor with AMX":
        pytest.skip("not promised: K-quants on a processor with AMX")
    check_canary(model)


@pytest.mark.parametrize("model_file", ["f32"], indirect=True)
def test_there_is_no_canary_where_its_texts_do_not_fit_into_a_call(model):
    decoder, give_back = model.lease(EngineSettings(slots=2, n_batch=64, n_ubatch=64, deterministic=False))
    assert canary(decoder, model.n_vocab) is None
    give_back()


def test_without_deterministic_the_lone_row_shows(model_file):
    """With llama.cpp's kernels the promise above is kept by the scheduler: without it bits differ."""
    model = LlamaModel(ModelSettings(path=str(model_file), kernels="llama.cpp"))
    prompts = texts(38)
    expected = complete(model, prompts, range(38), SamplingParams(), slots=16)[1]
    bits = complete(model, prompts, range(38), SamplingParams(), slots=1, deterministic=False)[1]
    assert any(bits[key] != expected[key] for key in expected if key in bits)
    model.close()


@pytest.mark.parametrize("kv", ["per_sequence", "unified"])
@pytest.mark.parametrize("model_file", ["f32"], indirect=True)  # across kernels, ids are only comparable in F32
def test_batched_ids_equal_those_of_llama_cpp_python_one_by_one(model_file, model, kv):
    prompts = [p for p in texts(19) if len(p) > 1]
    # One kernel for all counts of tokens, and an exact cache: what is left to differ is the order of additions.
    settings = {"slots": 8, "kv": kv, "deterministic": kv == "per_sequence", "flash_attention": False, "kv_type": "f32"}
    ours, _ = complete(model, prompts, range(len(prompts)), SamplingParams(), **settings)
    theirs = llama_cpp.Llama(str(model_file), n_ctx=1024, verbose=False, flash_attn=False, type_k=0, type_v=0)
    for i, prompt in enumerate(prompts):
        theirs.reset()
        made = theirs.generate(prompt.tolist(), temp=0.0, top_k=1)
        assert ours[i] == [next(made) for _ in range(3 + i % 9)], f"prompt of {len(prompt)} tokens"
    theirs.close()


def test_contexts_are_made_once(model):
    before = model.contexts.made
    for _ in range(3):
        complete(model, texts(3), range(3), SamplingParams(), slots=5)
    assert model.contexts.made == before + 1


def test_contexts_that_nobody_uses_are_freed_before_another_is_made():
    alive: set[int] = set()

    class Cache:
        def __init__(self, slots: int) -> None:
            self.slots = slots
            alive.add(slots)

        def clear(self) -> None:
            assert self.slots in alive

        def close(self) -> None:
            alive.remove(self.slots)

    pool = ContextPool[Cache]()

    def lease(slots: int) -> Callable[[], None]:
        return pool.lease(slots, partial(Cache, slots))[1]

    keep = lease(4)
    for slots in (8, 16, 32, 16):  # a sweep, beside another node of the job
        back = lease(slots)
        assert alive == {4, slots}
        back()
    keep()
    for slots in (4, 16):
        lease(slots)()
    assert (pool.made, alive) == (5, {4, 16})
    pool.close()
    assert not alive


def test_a_batch_that_is_too_large_is_an_error_not_an_abort(model):
    decoder, give_back = model.lease(EngineSettings(slots=2, n_batch=64, n_ubatch=64, deterministic=False))
    with pytest.raises(DecodeFailed, match="a batch of 65 tokens is larger than n_batch=64"):
        decoder.batch.add_spans([np.zeros(65, np.int32)], [0], [0], [1])
    give_back()


def test_a_refused_batch_names_the_code(model):
    decoder, give_back = model.lease(EngineSettings(slots=2))
    compute(decoder, np.zeros(4, np.int32))
    with pytest.raises(DecodeFailed, match="llama_decode failed with -1: the batch is malformed"):
        compute(decoder, np.zeros(4, np.int32), start=2)
    give_back()


def test_tokens_of_a_batch_of_texts(model, model_file):
    theirs = llama_cpp.Llama(str(model_file), vocab_only=True, verbose=False)
    words = ["Hello, world!", "", "naïve 🙂 text\0with a NUL", "<|im_start|>user\nhi<|im_end|>", "long " * 5000]
    ids, offsets = model.tokenize([w.encode() for w in words], special=True)
    for word, start, end in zip(words, offsets, offsets[1:], strict=False):
        assert ids[start:end].tolist() == theirs.tokenize(word.encode(), add_bos=True, special=True)
    pieces = model.pieces()
    for word, start, end in zip(words[:3], offsets, offsets[1:], strict=False):
        assert b"".join(pieces[t] for t in ids[start:end]) == word.encode()
    theirs.close()


@pytest.mark.laws
@pytest.mark.parametrize("file_type", ["q8_0", "q4_0", "q4_k_m"])
def test_quantised_recurrent_layers_compute_all_rows_of_a_call(file_type: str, tmp_path: Path) -> None:
    """With AMX llama.cpp's own choice of kernels computes one of them, or ends the process."""
    path = tmp_path / "lfm2.gguf"
    sizes = Shape("lfm2", n_layer=4, n_embd=256, n_head=4, head_dim=64, n_ff=512, attention_every=2)
    write_model(path, shape=sizes, file_type=file_type)
    model = LlamaModel(ModelSettings(path=str(path)))
    prompts = texts(19)
    together, _ = complete(model, prompts, range(19), SamplingParams(), slots=16)
    alone, _ = complete(model, prompts, range(19), SamplingParams(), slots=1)
    model.close()
    assert together == alone
