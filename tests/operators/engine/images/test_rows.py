"""Rows with images on the fake decoder: what a row gets is its own, whoever is beside it and whatever they share."""

from __future__ import annotations

import itertools
from collections.abc import Sequence as Seq
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from operators.engine.backend.fake_vision import FakeVision
from operators.engine.backend.images import Encoded, ImageCells, ImageSpan
from operators.engine.images.cells import cell_ids, is_inside, piece_of
from operators.engine.sampling.logit_edits import history
from operators.engine.scheduler.step_batch import Chunking
from operators.engine.sequence import Sequence
from operators.engine.strategies.autoregressive import Autoregressive
from operators.engine.strategies.base import DecodeSetup
from operators.engine.strategies.speculative.setup import SpeculativeSetup
from operators.engine.strategies.speculative.strategy import Speculative
from operators.settings import DecodeSettings, ModelSettings
from operators.settings.runtime import EngineSettings
from operators.settings.speculative import SpeculativeSettings
from pipeline.api.errors import ConfigError
from tests.operators.engine.fixtures import WARM, Bench, in_slot, shape

VISION = FakeVision("eyes")
FAKE = ModelSettings(loader="operators.engine.backend.fake:load", mmproj="eyes")
SIZES = ((32, 32), (48, 64), (128, 48), (16, 16))
"""Images of 4 and 12 cells, of two blocks of 24, and of a single cell."""


def image(number: int) -> np.ndarray:
    width, height = SIZES[number % len(SIZES)]
    return np.random.default_rng(number).integers(0, 256, (height, width, 3), np.uint8)


def encode(number: int, block: int) -> Encoded:
    return VISION.encode(image(number))[block]


def prompt(parts: Seq[int | np.ndarray]) -> tuple[np.ndarray, tuple[ImageSpan, ...]]:
    """The ids of texts and images (by their numbers), and the blocks of these."""
    ids: list[np.ndarray] = []
    spans: list[ImageSpan] = []
    for part in parts:
        if isinstance(part, np.ndarray):
            ids.append(part)
            continue
        pixels, block = image(part), 0
        for own in VISION.layout(pixels.shape[1], pixels.shape[0]):
            if isinstance(own, ImageCells):
                spans.append(ImageSpan(sum(map(len, ids)), own.tokens, partial(encode, part, block)))
                ids.append(cell_ids(bytes([part]), block, own.tokens))
                block += 1
            else:
                ids.append(own)
    return np.concatenate(ids), tuple(spans)


def rows(count: int, seed: int = 1) -> list[Sequence]:
    """Rows of up to four parts, of which many begin alike."""
    random = np.random.default_rng(seed)
    beginnings = [random.integers(0, 256, n).astype(np.int32) for n in (3, 40, 90)]
    made = []
    for i in range(count):
        parts: list[int | np.ndarray] = [beginnings[random.integers(3)]]
        for _ in range(random.integers(0, 3)):
            parts.append(int(random.integers(5)))
            if random.random() < 0.5:
                parts.append(np.arange(random.choice([1, 2, 70])).astype(np.int32))
        if len(parts) == 1 or random.random() < 0.8:
            parts.append(random.integers(0, 256, random.choice([1, 5, 80])).astype(np.int32))
        ids, images = prompt(parts)
        made.append(Sequence(i, ids, WARM, seed=i, max_tokens=12, images=images))
    return made


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("slots", [3, 16])
def test_a_row_with_images_gets_what_it_gets_alone(slots, deterministic):
    """The fake computes from what was encoded: tokens that went with another image would be others."""
    sizes = {"max_sequence_tokens": 512, "n_batch": 512, "n_ubatch": 128, "deterministic": deterministic}
    alone = {row.handle: Bench(shape(1, **sizes)).run([row])[row.handle] for row in rows(32)}
    bench = Bench(shape(slots, **sizes))
    assert bench.run(rows(32)) == alone
    assert len({tuple(tokens) for tokens in alone.values()}) > 20
    assert bench.engine.totals()["shared_tokens"] > 400


def test_a_call_that_fails_costs_no_row_with_an_image():
    """It is made again in halves, with the images that were encoded for it."""
    expected = Bench(shape(4, max_sequence_tokens=512)).run(rows(30))
    bench, calls = Bench(shape(4, max_sequence_tokens=512)), iter(range(1, 10**6))
    bench.decoder._fail = lambda batch: 2 if next(calls) % 7 == 0 else 0
    assert bench.run(rows(30)) == expected
    assert bench.engine.totals()["failed_calls"] > 3


def test_an_image_that_cannot_be_read_any_more_costs_its_row():
    def gone() -> Encoded:
        raise ValueError("the image is gone")

    made, bench = rows(20), Bench(shape(4, max_sequence_tokens=512))
    with_images = [row for row in made if row.images]
    lost = with_images[1]
    lost.images = (*lost.images[:-1], ImageSpan(lost.images[-1].start, lost.images[-1].cells, gone))
    lost.prompt = lost.prompt.copy()
    lost.prompt[: lost.images[0].start] += 1  # nobody else computes it
    expected = Bench(shape(4, max_sequence_tokens=512)).run([row for row in rows(20) if row.handle != lost.handle])
    found = bench.run(made)
    assert lost.error == "the image is gone"
    assert not found.pop(lost.handle)
    assert found == expected


def test_pieces_of_prompts_are_told_from_their_ids_alone():
    """As the images of a row say, which a slot whose row has left does not have any more."""
    for row in rows(40, seed=3):
        blocks = [(image.start, image.start + image.cells) for image in row.images]
        borders = sorted({0, len(row.prompt), *itertools.chain(*blocks)})
        for start, end in itertools.pairwise(borders):
            assert {piece_of(row.prompt, cell) for cell in range(start, end)} == {(start, end)}
        inside = {cell for start, end in blocks for cell in range(start + 1, end)}
        assert inside == {cell for cell in range(len(row.prompt) + 1) if is_inside(row.prompt, cell)}


@pytest.mark.parametrize("kernel_tokens", [0, 2, 64])
def test_what_is_shared_ends_between_pieces_or_where_texts_may_be_cut(kernel_tokens):
    """No piece is left or taken over that another kernel would compute than the whole of it."""
    chunking, made = Chunking(kernel_tokens), rows(40)
    for one in made:
        for other in made:
            count = chunking.shared(one.prompt, other.prompt)
            assert (one.prompt[:count] == other.prompt[:count]).all()
            assert count < len(one.prompt)
            assert not is_inside(one.prompt, count)
            assert not is_inside(other.prompt, count)
            (start, end), least = piece_of(one.prompt, count), 2 if kernel_tokens == 2 else kernel_tokens
            if kernel_tokens and start < count:
                lengths = {end - start >= kernel_tokens, piece_of(other.prompt, count - 1)[1] - start >= kernel_tokens}
                least = kernel_tokens if end - start >= kernel_tokens else 2
                assert len(lengths) == 1
                assert count - start >= least
                assert end - count >= least


def test_no_image_is_encoded_any_more_when_a_run_is_being_stopped():
    bench, encoded = Bench(shape(8, max_sequence_tokens=512)), []

    def encode_one() -> Encoded:
        encoded.append(1)
        return encode(0, 0)

    made = [Sequence(i, *prompt([np.array([i], np.int32), 0])[:1], WARM, seed=i, max_tokens=3) for i in range(8)]
    for row in made:
        row.images = (ImageSpan(2, 4, encode_one),)
    bench.worker._stopping = lambda: bool(encoded)
    client = bench.client()
    client.submit(made)
    while not encoded:
        bench.worker.step()
    assert len(encoded) == 1


def test_the_time_in_which_images_of_others_are_encoded_does_not_count():
    """Three take 100 s each, one of the rows is refused for its own; the clock stands still but for them."""
    bench, now = Bench(shape(4, max_sequence_tokens=512), row_timeout_s=150.0), [0.0]
    bench.worker.log.clock = lambda: now[0]

    def slow(seconds: float) -> Encoded:
        now[0] += seconds
        return encode(0, 0)

    made = [Sequence(0, np.arange(9, dtype=np.int32), WARM, seed=0, max_tokens=12)]
    for i, seconds in enumerate((100.0, 200.0, 100.0), 1):
        ids, _ = prompt([np.array([i], np.int32), 0])
        images = (ImageSpan(2, 4, partial(slow, seconds)),)
        made.append(Sequence(i, ids, WARM, seed=i, max_tokens=3, images=images))
    bench.run(made)
    assert now == [400.0]
    assert [row.handle for row in made if row.error is not None] == [2]
    assert "row_timeout_s=150" in (made[2].error or "")


def test_a_block_is_one_chunk_whatever_the_room_and_is_taken_over_whole_or_not_at_all():
    """Also where a prompt ends with it, so that equal prompts have all of it in common but the last cell."""
    for kernel_tokens in (0, 2, 64):
        chunking, cells = Chunking(kernel_tokens), cell_ids(b"a", 0, 24)
        ids = np.concatenate([np.arange(70, dtype=np.int32), cells])
        assert chunking.shared(ids, ids) == 70
        row = in_slot(Sequence(0, ids, WARM, seed=0, max_tokens=1, images=(ImageSpan(70, 24, VISION.close),)), 70)  # type: ignore[arg-type]
        assert chunking.size(row, 3) == 24
    assert not set(cell_ids(b"a", 0, 24).tolist()) & set(cell_ids(b"a", 1, 24).tolist())


def test_a_block_of_one_cell_at_the_end_of_a_prompt_is_read_as_an_image():
    """Else it would be decoded as a token, which it is not."""
    ids = np.append(np.arange(3, dtype=np.int32), cell_ids(b"a", 0, 1)).astype(np.int32)
    images = (ImageSpan(3, 1, partial(encode, 3, 0)),)
    rows = [Sequence(i, ids, WARM, seed=0, max_tokens=5, images=images) for i in range(2)]
    found = Bench(shape(2)).run(rows)
    assert not any(row.error for row in rows)
    assert found[0] == found[1] != []


def test_cells_of_images_are_no_tokens_for_penalties():
    row = Sequence(0, np.array([5, 6, -9, -8, 7], np.int32), WARM, seed=0, max_tokens=3)
    row.tokens = [1, 2]
    assert [history(row, last).tolist() for last in (None, 2, 4, 9)] == [
        [5, 6, 7, 1, 2],
        [1, 2],
        [6, 7, 1, 2],
        [5, 6, 7, 1, 2],
    ]


REFUSED: dict[str, dict[str, Any]] = {
    "decode=speculative": {"setup": SpeculativeSetup(SpeculativeSettings(), Speculative)},
    "runtime.kv=unified": {"engine": EngineSettings(kv="unified", deterministic=False)},
    "runtime.window_cache=small": {"engine": EngineSettings(window_cache="small")},
    "model.adapters": {"model": replace(FAKE, adapters={"one": "a.gguf"})},
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_takes_no_images_is_refused_by_name(what):
    given: dict[str, Any] = {
        "setup": DecodeSetup(DecodeSettings(), Autoregressive),
        "engine": EngineSettings(),
        "model": FAKE,
    }
    given["setup"].check_images(given["engine"], given["model"])
    given |= REFUSED[what]
    with pytest.raises(ConfigError, match=f"images, which {what} does not take"):
        given["setup"].check_images(given["engine"], given["model"])


def test_rows_of_a_model_that_reads_images_have_room_for_them_where_nobody_says():
    setup, plain = DecodeSetup(DecodeSettings(), Autoregressive), EngineSettings()
    assert setup.of_images(plain, replace(FAKE, mmproj=None)) is plain
    usual = setup.of_images(plain, FAKE)
    assert (usual.max_sequence_tokens, usual.n_ubatch) == (4096, plain.n_batch)
    assert setup.of_images(EngineSettings(max_sequence_tokens=99), FAKE).max_sequence_tokens == 99
