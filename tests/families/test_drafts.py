"""Drafts for models with recurrent layers: which can drop those that were wrong, and that no bit depends on them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from collections.abc import Sequence as Seq
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader, GGUFWriter

from operators.engine.backend.interface import Decoder
from operators.engine.backend.loading import inspect_model
from operators.engine.sampling.params import SamplingParams
from operators.engine.sampling.sampler import Sampler
from operators.engine.strategies.speculative.lookup import Draft, DraftedRow
from operators.engine.strategies.speculative.strategy import Speculative
from operators.llama.header import read_header
from operators.llama.kernels import is_arm, system_info
from operators.llama.model import LlamaModel
from operators.settings import ModelSettings
from operators.settings.runtime import EngineSettings
from pipeline.api.errors import ExitCode
from pipeline.cli.main import main
from pipeline.system.failpoints import VARIABLE, Failpoint
from tests.families.drafted import APART, DRAFTED, RECURRENT, opened
from tests.families.test_architectures import rows
from tests.families.test_families import FAMILIES, HERE, data, job
from tests.operators.engine.speculative.drafters import Oracle, speculative, with_model
from tests.operators.llama.gguf_files import keys_of, write_file
from tests.operators.llama.test_decoding import COUNTS, MOST_DRAFTED, complete, texts
from tests.sets import often
from tools.models.make_model import quantize_file

pytestmark = pytest.mark.slow("decodes with a model of each family, with drafts and without")

WARM, GREEDY = SamplingParams(temperature=1.0, top_k=40), SamplingParams()
SHUFFLED = np.random.default_rng(1).permutation(19).tolist()


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
    """With all others so, too, no bit depends on drafts; with these alone they do. (LFM2's on processors with AVX-512
    alone: llama.cpp's products by AVX2 have the same bits for any number of tokens of its sizes.)"""
    whole, parts = HERE / f"{family}.gguf", quantised(family)
    fine = opened(mixed(whole, parts, tmp_path / "fine.gguf", NAMES[family]))
    check_drafts(fine, (3,))
    fine.close()
    changed = mixed(parts, whole, tmp_path / "changed.gguf", NAMES[family])
    assert "are in floating point" in str(inspect_model(ModelSettings(path=str(changed))).drafts_change_bits)
    model = opened(changed)
    depends = family != "lfm2" or b"AVX512" in system_info()
    with pytest.raises(AssertionError) if depends else nullcontext():
        check_drafts(model, (3,))
    model.close()


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
    assert set(said.values()) == {"not run"}  # of models that read images
