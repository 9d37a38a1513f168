"""Drafts for models with recurrent layers: which can drop those that were wrong, and that no bit depends on them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader, GGUFWriter

from operators.engine.backend.batch import DecodeFailed
from operators.engine.backend.interface import Decoder
from operators.engine.backend.loading import inspect_model
from operators.engine.sampling.params import SamplingParams
from operators.engine.sampling.sampler import Sampler
from operators.engine.strategies.speculative.lookup import Draft, DraftedRow
from operators.engine.strategies.speculative.setup import SpeculativeSetup
from operators.engine.strategies.speculative.strategy import Speculative
from operators.generation.wiring import draft_memory, model_memory
from operators.llama import model as llama_model
from operators.llama.contexts.recurrent import no_rollback
from operators.llama.header import read_header
from operators.llama.kernels import is_arm
from operators.llama.model import LlamaModel
from operators.settings import ModelSettings
from operators.settings.runtime import EngineSettings
from operators.settings.speculative import SpeculativeSettings
from pipeline.api.errors import ExitCode
from pipeline.cli.main import main
from pipeline.system.failpoints import VARIABLE, Failpoint
from tests.families.test_architectures import rows
from tests.families.test_families import FAMILIES, HERE, data, job
from tests.operators.engine.speculative.drafters import Oracle, speculative, with_model
from tests.operators.llama.gguf_files import keys_of, write_file
from tests.operators.llama.test_decoding import COUNTS, MOST_DRAFTED, complete, compute, texts
from tests.sets import often
from tools.models.make_model import quantize_file

pytestmark = pytest.mark.slow("decodes with a model of each family, with drafts and without")

RECURRENT = tuple(name for name in FAMILIES if read_header(HERE / f"{name}.gguf").recurrent)
DRAFTED = tuple(name for name in RECURRENT if no_rollback(read_header(HERE / f"{name}.gguf").architecture) is None)
APART = ("lfm2", "qwen3_5")
"""Families that multiply some matrices with the tokens of each row apart."""
WARM, GREEDY = SamplingParams(temperature=1.0, top_k=40), SamplingParams()
SHUFFLED = np.random.default_rng(1).permutation(19).tolist()


def opened(path: Path) -> LlamaModel:
    return LlamaModel(ModelSettings(path=str(path)))


@pytest.fixture(scope="module")
def quantised(tmp_path_factory) -> Callable[[str], Path]:
    """A function: the file of a family in Q8_0."""
    folder = tmp_path_factory.mktemp("quantised")

    def made(family: str) -> Path:
        path: Path = folder / f"{family}.gguf"
        if not path.exists():
            quantize_file(HERE / f"{family}.gguf", path, "q8_0")
        return path

    return made


@pytest.fixture(scope="module", params=often(DRAFTED, "lfm2", "qwen3_5"))
def model(request, quantised) -> Iterator[LlamaModel]:
    loaded = opened(quantised(request.param))
    yield loaded
    loaded.close()


@pytest.mark.parametrize("family", RECURRENT)
def test_a_state_has_the_size_that_is_said_and_is_kept_where_that_is_said(family, monkeypatch):
    """If llama.cpp is asked to keep states of any architecture, it does of those that are named, and of no other."""
    path, draft = HERE / f"{family}.gguf", 3
    header = read_header(path)
    monkeypatch.setattr(llama_model, "ROLLS_BACK", {header.architecture})
    model = opened(path)
    decoder, _ = model.lease(EngineSettings(slots=2, max_sequence_tokens=256), draft=draft)
    assert decoder.rollback == (draft if family in DRAFTED else 0)
    compute(decoder, texts(1)[0])
    assert 0 <= len(decoder.mark(0)) - header.state_bytes < 1024  # and some numbers for each layer
    model.close()


@pytest.mark.parametrize("family", DRAFTED)
def test_the_states_are_in_the_plan(family):
    settings, runtime = ModelSettings(path=str(HERE / f"{family}.gguf")), EngineSettings(slots=3)

    def size(draft: int) -> int:
        *_, context, _ = model_memory(settings, runtime, "key", draft=draft)
        return context.size_bytes - 4 * runtime.slots * (1 + draft) * read_header(HERE / f"{family}.gguf").n_vocab

    state = read_header(HERE / f"{family}.gguf").state_bytes
    assert size(5) - size(0) == 5 * runtime.slots * state > 0
    setup = SpeculativeSetup(SpeculativeSettings(draft={"model": settings.path}), Speculative)
    assert draft_memory(setup, settings, runtime, "key")[-1].size_bytes == runtime.slots * state


@pytest.mark.parametrize("family", RECURRENT)
def test_what_was_marked_comes_back(family):
    """After calls of any number of tokens, in a context that keeps no states, beside a row that goes on."""
    model = opened(HERE / f"{family}.gguf")
    decoder, _ = model.lease(EngineSettings(slots=3, max_sequence_tokens=256, threads=1))
    for slot, prompt in enumerate((WRONG, PROMPT)):
        compute(decoder, prompt, slot=slot)
    mark = decoder.mark(1)
    expected = after(decoder, 1, 0)
    compute(decoder, TEXT[:5], len(PROMPT), 0)
    compute(decoder, WRONG[:3], len(PROMPT) + 1, 1)
    compute(decoder, WRONG[3:4], len(PROMPT) + 4, 1)
    decoder.rewind(1, len(PROMPT), mark)
    assert after(decoder, 1, 0) == expected
    model.close()


class Cut(Oracle):
    """Drafts right tokens up to a place, and wrong ones behind it; each time another place."""

    def __init__(self, truth) -> None:
        super().__init__(truth, 1.0)
        self.places: list[int] = []

    def _of(self, row: DraftedRow, count: int) -> Draft:
        tokens, kind = super()._of(row, count)
        self.places.append(place := (len(row.tokens) + row.handle) % (count + 1))  # type: ignore[operator]
        return Draft([t if i < place else (t + 1) % 250 for i, t in enumerate(tokens)], kind)


def check_drafts(model: LlamaModel, slots: Seq[int] = (1, 3, 16), tokens: int = 20) -> None:
    """Drafts that are right up to any place change no bit; a row that moves is copied after it went back."""
    prompts = texts(19)
    expected = complete(model, prompts, range(19), WARM, tokens, slots=16, threads=1)
    for count in slots:
        drafter = Cut(expected[0])
        make = partial(speculative, drafter, adaptive=False, draft_tokens=MOST_DRAFTED)
        assert complete(model, prompts, SHUFFLED, WARM, tokens, slots=count, threads=1, make=make) == expected, count
        assert set(drafter.places) == set(range(MOST_DRAFTED + 1))
        assert COUNTS["drafted_tokens"] > COUNTS["accepted_tokens"] > 20
    assert slots[-1] == 1 or COUNTS["moves"] > 0


def test_no_bit_depends_on_how_much_of_a_draft_is_right(model):
    check_drafts(model)


@pytest.mark.laws
@pytest.mark.parametrize("kernels", ["auto", "llama.cpp"])
@pytest.mark.parametrize("file_type", ["f32", "bf16", "q4_0", "q4_k_m"])
@pytest.mark.parametrize("family", DRAFTED)
def test_no_bit_depends_on_drafts_in_any_type_or_the_model_is_refused(family, file_type, kernels, tmp_path):
    path = HERE / f"{family}.gguf"
    if file_type != "f32":
        path = tmp_path / "model.gguf"
        quantize_file(HERE / f"{family}.gguf", path, file_type)
    refused = inspect_model(ModelSettings(path=str(path))).drafts_change_bits is not None
    assert refused == (family in APART and file_type in ("f32", "bf16"))
    if not refused:
        model = LlamaModel(ModelSettings(path=str(path), kernels=kernels))
        check_drafts(model)
        model.close()


def mixed(source: Path, other: Path, target: Path, names: Seq[str]) -> Path:
    """Copy a model, with the tensors whose names end so from `other`."""
    reader, others = GGUFReader(source), {tensor.name: tensor for tensor in GGUFReader(other).tensors}
    writer = GGUFWriter(target, reader.fields["general.architecture"].contents())
    for key in keys_of(reader):
        writer.add_key_value(*key)
    for tensor in reader.tensors:
        taken = others[tensor.name] if tensor.name.endswith(tuple(names)) else tensor
        writer.add_tensor(taken.name, taken.data, raw_dtype=taken.tensor_type)
    write_file(writer)
    return target


NAMES = {"lfm2": ("shortconv.in_proj.weight", "shortconv.out_proj.weight"), "qwen3_5": ("ssm_out.weight",)}


@pytest.mark.skipif(is_arm(), reason="floating point is not tested there")
@pytest.mark.parametrize("family", APART)
def test_only_the_matrices_that_are_named_may_not_be_in_floating_point(family, quantised, tmp_path):
    """With all others so, too, no bit depends on drafts; with these alone they do."""
    whole, parts = HERE / f"{family}.gguf", quantised(family)
    fine = opened(mixed(whole, parts, tmp_path / "fine.gguf", NAMES[family]))
    check_drafts(fine, (3,))
    fine.close()
    changed = mixed(parts, whole, tmp_path / "changed.gguf", NAMES[family])
    assert "are in floating point" in str(inspect_model(ModelSettings(path=str(changed))).drafts_change_bits)
    model = opened(changed)
    with pytest.raises(AssertionError):
        check_drafts(model, (3,))
    model.close()


PROMPT, TEXT, WRONG = (np.random.default_rng(i).integers(0, 250, 40).astype(np.int32) for i in range(3))


@pytest.fixture
def decoder(model) -> Iterator[Decoder]:
    found, give_back = model.lease(EngineSettings(slots=3, max_sequence_tokens=256, threads=1), draft=MOST_DRAFTED)
    yield found
    give_back()


def after(decoder: Decoder, slot: int, length: int) -> bytes:
    """The logits of the next token of TEXT in `slot`, which has so many of it; beside a row, as one alone differs."""
    decoder.batch.clear()
    places = sorted([(slot, len(PROMPT) + length), (2, 0)])
    decoder.batch.add_spans(
        [TEXT[length : length + 1]] * 2, [at for _, at in places], [each for each, _ in places], [1, 1]
    )
    line: bytes = decoder.decode()[0].tobytes()
    decoder.truncate(2, 0)
    return line


@pytest.mark.parametrize("dropped", range(MOST_DRAFTED + 1))
def test_what_went_back_is_as_if_it_had_never_drafted(decoder, dropped):
    """Also when it is copied into a slot that had gone back itself, or saved, before the next call."""
    right = MOST_DRAFTED + 1 - dropped
    compute(decoder, PROMPT)
    for i in range(right):
        expected = after(decoder, 0, i)
    expected = after(decoder, 0, right)

    def drafted(slot: int, right: int = right) -> None:
        decoder.truncate(slot, 0)
        compute(decoder, PROMPT, slot=slot)
        compute(decoder, np.concatenate([TEXT[:right], WRONG])[: MOST_DRAFTED + 1], len(PROMPT), slot)
        decoder.truncate(slot, len(PROMPT) + right)

    drafted(0)
    saved = bytes(decoder.save(0))
    assert after(decoder, 0, right) == expected
    drafted(0, 2 if right == 3 else 3)
    drafted(1)
    decoder.copy(1, 0, len(PROMPT) + right)
    assert after(decoder, 0, right) == expected
    drafted(1)
    decoder.truncate(1, 0)
    decoder.restore(1, saved)
    assert after(decoder, 1, right) == expected


def test_what_llama_would_do_wrongly_is_refused(decoder):
    """It goes back to a state of an older call without a word."""
    length = len(PROMPT) + 8
    compute(decoder, PROMPT)
    compute(decoder, TEXT[:8], len(PROMPT))
    compute(decoder, TEXT[8:10], length)
    with pytest.raises(DecodeFailed, match="cannot cut what it has in slot 0"):
        decoder.truncate(0, length)
    decoder.truncate(0, length + 1)
    decoder.truncate(0, 0)


@pytest.mark.parametrize("draft", often([*RECURRENT, "itself"], "lfm2", "mamba2", "itself"))
def test_a_draft_model_may_have_recurrent_layers(draft, quantised):
    """Of any architecture, since it goes back to what was saved."""
    model = opened(quantised("lfm2"))
    other = model if draft == "itself" else opened(HERE / f"{draft}.gguf")
    prompts = texts(12)
    for params in (GREEDY, WARM):
        expected = complete(model, prompts, range(12), params, 16, slots=12, threads=1)
        for slots, most in [(1, 7), (4, 3)]:
            backs: list[Callable[[], None]] = []

            def make(decoder: Decoder, sampler: Sampler, slots: int = slots, most: int = most) -> Speculative:
                settings = EngineSettings(slots=slots, threads=1)
                found, give_back = with_model(other, settings, decoder, sampler, adaptive=False, draft_tokens=most)
                backs.append(give_back)  # noqa: B023 - called at once
                return found

            assert complete(model, prompts, range(12), params, 16, slots=slots, threads=1, make=make) == expected
            assert COUNTS["drafted_tokens"] > 20
            if draft == "itself" and params is GREEDY:
                assert COUNTS["accepted_tokens"] > 0.9 * COUNTS["drafted_tokens"]
            backs[0]()
    for each in {model, other}:
        each.close()


@pytest.mark.parametrize("family", often(DRAFTED, "lfm2"))
def test_a_job_has_the_bytes_of_one_without_drafts_also_resumed_and_from_its_store(family, quantised, tmp_path):
    usual = [
        *(f"model.path={quantised(family)}", "runtime.kv_type=f16", "runtime.flash_attention=true", "chunk_rows=8"),
        *("runtime.slots=3", "runtime.threads=1", f"store.path={tmp_path / 'store.sqlite'}"),
    ]
    always = ("decode=speculative", "decode.adaptive=false", "decode.draft_tokens=3", "store.enabled=false")
    plain, killed, found = (tmp_path / name for name in ("plain", "killed", "found"))
    assert main(job(family, plain, *usual)) == ExitCode.DONE
    at = os.environ | {VARIABLE: f"{Failpoint.SHARD_RENAMED}:2"}
    command = [sys.executable, "-m", "pipeline", *job(family, killed, *usual, *always)]
    assert subprocess.run(command, env=at, check=False).returncode == -signal.SIGKILL
    assert main(job(family, killed, *usual, *always)) == ExitCode.DONE
    assert data(killed) == data(plain)
    assert main(job(family, found, *usual, "decode=speculative")) == ExitCode.DONE
    assert data(found) == data(plain)


@pytest.mark.parametrize(
    ("family", "settings", "said"),
    [
        ("mamba2", (), "and of the architecture mamba2 nothing is kept to go back to when a draft was wrong"),
        ("lfm2", (), "set model.weights=q8_0, or runtime.deterministic=false"),
        (
            "lfm2",
            ("runtime.deterministic=false", "runtime.n_ubatch=8", "runtime.slots=2"),
            "runtime.n_ubatch=8: to drop a draft of decode.draft_tokens=7 from its recurrent layers it has to be 9",
        ),
    ],
)
def test_what_cannot_work_is_refused_by_name(family, settings, said, tmp_path, capsys):
    given = ("runtime.flash_attention=true", "decode=speculative", *settings)
    assert main(job(family, tmp_path / "out", *given)) == ExitCode.CONFIG
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out" / "data").exists()


def test_the_table_of_families_says_which_can_have_drafts():
    said = {name: cells[-2] for name, cells in rows("Families").items() if cells[0] != "encoder"}
    for family in FAMILIES:
        facts = inspect_model(ModelSettings(path=str(HERE / f"{family}.gguf")))
        whole = "yes" if facts.drafts_change_bits is None else "not of `f32` `bf16`"
        found = said.pop(str(read_header(HERE / f"{family}.gguf").architecture))
        assert found == ("no" if facts.no_rollback else whole)
    assert not said
