"""The files that adapters become: their values, their place in the cache, and what llama.cpp computes with them."""

from __future__ import annotations

import multiprocessing
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, quants
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.llama.adapters.prepared import PreparedAdapters, prepared
from operators.llama.adapters.targets import read_base
from operators.llama.adapters.tensors import EMBEDDINGS, HEAD, AdapterSource
from pipeline.api.errors import InputError
from pipeline.system.file_cache import PLACE, weights_cache
from tests.operators.llama.adapters.adapter_files import (
    FAMILIES,
    LLAMA,
    MOE,
    QWEN3,
    Pair,
    accepted,
    architecture_of,
    delta,
    drawn,
    merged,
    peft_names,
    read,
    refused,
    tensors_of,
    tiny_model,
    write_adapter,
    write_peft,
)

Q, K, DOWN = "blk.0.attn_q.weight", "blk.1.attn_k.weight", "blk.0.ffn_down.weight"
UP = "blk.0.ffn_up_exps.weight"
LARGE_ERRORS = {"gemma3": 2e-3, "qwen3_5": 2e-4}
"""Families whose logits move more by rounding: Gemma's by up to 0.0011 on a processor with AVX2 alone."""


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv(PLACE, str(tmp_path / "cache"))


def sources(folder: Path, base: Path, *adapters: tuple[dict[str, Pair], float]) -> list[AdapterSource]:
    """Write adapters of a base, each with a scale."""
    architecture = architecture_of(base)
    return [
        AdapterSource(name, write_adapter(folder / f"{name}.gguf", pairs, architecture), scale)
        for name, (pairs, scale) in zip("abc", adapters, strict=False)
    ]


def three(folder: Path, base: Path, *targets: str) -> tuple[list[AdapterSource], list[dict[str, Pair]]]:
    """Write adapters of ranks 4, 17 and 3, of which the second has no tensor for the first target."""
    shapes = read_base(base)
    pairs = [drawn(shapes, targets, 4), drawn(shapes, targets[1:], 17, seed=1), drawn(shapes, targets, 3, seed=2)]
    return sources(folder, base, *zip(pairs, (0.5, 2.0, 1.0), strict=True)), pairs


@pytest.mark.parametrize(("base", "targets"), [(LLAMA, (EMBEDDINGS, Q, HEAD)), (MOE, (UP, K))])
def test_in_the_bank_each_adapter_has_its_ranks_and_b_lies_transposed(tmp_path, base, targets):
    given, pairs = three(tmp_path, base, *targets)
    adapters = prepared(base, given)
    assert adapters.begins.dtype == np.int32
    assert adapters.begins.tolist() == [0, 16, 48, 64]
    assert adapters.targets == tuple(sorted(targets))
    assert adapters.names == ("a", "b", "c")
    bank = tensors_of(adapters.bank())
    assert sum(values.nbytes for values in bank.values()) == adapters.bank_bytes
    for target in targets:
        a, b = bank[f"{target}.lora_a"], bank[f"{target}.lora_b"]
        *experts, n_out, n_in = read_base(base).tensors[target]
        outputs = n_in if target == EMBEDDINGS else n_out
        assert b.shape == (*experts, outputs, 64), "it is declared as elsewhere"
        lying = b.reshape(*experts, 64, outputs)
        for i, (begin, end) in enumerate(zip(adapters.begins, adapters.begins[1:], strict=False)):
            own_a = a[..., begin:end] if target == EMBEDDINGS else a[..., begin:end, :]
            own = own_a, lying[..., begin:end, :].swapaxes(-1, -2)
            if target not in pairs[i]:
                assert not own[0].any()
                assert not own[1].any()
            else:
                np.testing.assert_allclose(
                    delta(target, own), given[i].scale * delta(target, pairs[i][target]), atol=1e-6
                )


def test_singles_have_the_scale_in_b_and_padded_ranks(tmp_path):
    given, pairs = three(tmp_path, LLAMA, Q, EMBEDDINGS)
    adapters = prepared(LLAMA, given)
    files = singles_of(adapters)
    assert all(
        sum(v.nbytes for v in tensors_of(file).values()) == a.size_bytes
        for file, a in zip(files, adapters.adapters, strict=True)
    )
    for file, source, own in zip(files, given, pairs, strict=True):
        reader = GGUFReader(file)
        assert reader.fields["adapter.lora.alpha"].contents() == 0
        found = {tensor.name: np.array(tensor.data) for tensor in reader.tensors}
        assert len(found) == 2 * len(own)
        for target, (a, b) in own.items():
            axis = -1 if target == EMBEDDINGS else -2
            rank = b.shape[-1]
            stored_a, stored_b = np.moveaxis(found[f"{target}.lora_a"], axis, 0), found[f"{target}.lora_b"]
            np.testing.assert_array_equal(stored_a[:rank], np.moveaxis(a, axis, 0))
            np.testing.assert_array_equal(stored_b[..., :rank], b * np.float32(source.scale))
            assert stored_a.shape[0] == stored_b.shape[-1] == -(-rank // 16) * 16
            assert not stored_a[rank:].any()
            assert not stored_b[..., rank:].any()


def test_each_file_is_made_once_and_only_when_it_is_asked_for(tmp_path):
    given, _ = three(tmp_path, QWEN3, Q, K)
    adapters = prepared(QWEN3, given)
    assert not weights_cache().folder.exists()
    bank = adapters.bank()
    assert weights_cache().files() == [bank]
    singles = singles_of(adapters)
    made = {path: path.stat().st_ino for path in (bank, *singles)}
    again = prepared(QWEN3, given)
    assert {path: path.stat().st_ino for path in (again.bank(), *singles_of(again))} == made
    assert set(weights_cache().files()) == set(made)
    assert prepared(QWEN3, given[::-1]).bank() != bank, "another order"
    assert singles_of(prepared(QWEN3, given[::-1])) == singles[::-1]


def singles_of(adapters: PreparedAdapters) -> list[Path]:
    return [adapters.joined(1 << i) for i in range(len(adapters.names))]


def _bank(base: Path, given: list[AdapterSource]) -> bytes:
    return prepared(base, given).bank().read_bytes()


@pytest.mark.parametrize("damage", ["other values", "cut", "no header"])
def test_a_file_of_the_cache_that_was_damaged_is_made_anew(tmp_path, damage, capsys):
    given, _ = three(tmp_path, QWEN3, Q, K)
    adapters = prepared(QWEN3, given)
    for path in (adapters.bank(), adapters.joined(1)):
        whole = path.read_bytes()
        spoilt = {"other values": whole[:-1] + b"\x01", "cut": whole[:-64], "no header": b"GGUF"}[damage]
        path.write_bytes(spoilt)
        again = adapters.bank() if path.name.startswith("bank") else adapters.joined(1)
        assert again == path
        assert path.read_bytes() == whole
        assert f"{path} is damaged; it is made anew" in capsys.readouterr().err


def test_several_of_a_row_are_one_file(tmp_path):
    given, _ = three(tmp_path, QWEN3, Q, K)
    together = prepared(QWEN3, given)
    joined, bank = tensors_of(together.joined(5)), tensors_of(prepared(QWEN3, given[::2]).bank())
    assert joined.keys() == bank.keys()
    for name, values in joined.items():
        as_in_bank = bank[name].reshape(values.shape[::-1]).T if name.endswith(".lora_b") else bank[name]
        np.testing.assert_array_equal(values, as_in_bank)


def test_processes_make_one_file_together(tmp_path):
    given, _ = three(tmp_path, QWEN3, Q, K)
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        assert len(set(pool.starmap(_bank, [(QWEN3, given)] * 3))) == 1
    assert len(weights_cache().files()) == 1


def test_a_file_that_is_changed_between_its_check_and_its_use_is_refused(tmp_path):
    given, _ = three(tmp_path, QWEN3, Q, K)
    adapters = prepared(QWEN3, given)
    write_adapter(given[1].path, drawn(read_base(QWEN3), [K], 17), "qwen3", alpha=3.0)
    for make in (adapters.bank, lambda: adapters.joined(2)):
        with pytest.raises(InputError, match=r"model\.adapters\.b: .* was changed while it was read"):
            make()
    assert not weights_cache().files()
    assert prepared(QWEN3, given).contents[1] != adapters.contents[1]


def test_a_file_that_is_gone_when_it_is_needed_is_named(tmp_path):
    """Where rows are drained, that may be hours after it was checked; also if what is needed is in the cache."""
    given, _ = three(tmp_path, QWEN3, Q, K)
    adapters = prepared(QWEN3, given)
    made = adapters.joined(1)
    given[0].path.unlink()
    with pytest.raises(InputError, match=r"model\.adapters\.\w+: .* was changed while it was read"):
        adapters.joined(1)
    assert made.exists()


@settings(max_examples=15)
@given(
    rank=st.integers(1, 20),
    seed=st.integers(0, 9),
    scale=st.sampled_from([0.5, 1.0, -3.0]),
    alpha=st.sampled_from([0.0, 2.0]),
)
def test_what_is_written_is_read_and_the_content_is_that_of_the_values(tmp_path_factory, rank, seed, scale, alpha):
    folder = tmp_path_factory.mktemp("law")
    pairs = drawn(read_base(QWEN3), [Q, K], rank, seed)
    file = read(write_adapter(folder / "a.gguf", pairs, "qwen3", alpha=alpha), QWEN3, scale)
    factor = scale * (alpha / rank if alpha else 1)
    for target, (a, b) in pairs.items():
        np.testing.assert_array_equal(file.tensors[target].a, a)
        np.testing.assert_array_equal(file.tensors[target].b, (b * np.float64(factor)).astype(np.float32))
    modules = {Q: "model.layers.0.self_attn.q_proj", K: "model.layers.1.self_attn.k_proj"}
    tensors = {name: half for target, pair in pairs.items() for name, half in peft_names(modules[target], pair).items()}
    peft = write_peft(folder / "p", tensors, r=rank, lora_alpha=alpha or rank)
    assert read(peft, QWEN3, scale, name="other").content == file.content
    assert read(peft, QWEN3, scale * 2).content != file.content
    assert (
        read(write_adapter(folder / "b.gguf", {Q: pairs[Q]}, "qwen3", alpha=alpha), QWEN3, scale).content
        != file.content
    )


@settings(max_examples=60)
@given(data=st.data())
def test_a_damaged_header_is_refused_or_read(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("damaged")
    pairs = drawn(read_base(QWEN3), [Q], 4)
    file = write_adapter(folder / "a.gguf", pairs, "qwen3", alpha=2.0)
    peft = write_peft(folder / "p", peft_names("model.layers.0.self_attn.q_proj", pairs[Q]))
    for path, whole in ((file, file), (peft / "adapter_model.safetensors", peft)):
        content = bytearray(path.read_bytes())
        content[data.draw(st.integers(0, 320))] = data.draw(st.integers(0, 255))
        path.write_bytes(content)
        with suppress(InputError):
            assert read(whole, QWEN3).tensors


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0"])
def test_narrow_types_are_read(tmp_path, kind):
    pairs = drawn(read_base(QWEN3), [Q], 32)
    found = read(write_adapter(tmp_path / "a.gguf", pairs, "qwen3", kind=kind), QWEN3)
    raw = GGMLQuantizationType[kind]
    rounded = {Q: tuple(quants.dequantize(quants.quantize(half, raw), raw) for half in pairs[Q])}
    for half, values in zip(rounded[Q], (found.tensors[Q].a, found.tensors[Q].b), strict=True):
        np.testing.assert_array_equal(values, half)
    same = write_adapter(tmp_path / "b.gguf", rounded, "qwen3")
    assert read(same, QWEN3).content == found.content


def single(base: Path, path: Path, scale: float = 1.0) -> Path:
    adapters: PreparedAdapters = prepared(base, [AdapterSource("one", path, scale)])
    return adapters.joined(1)


@pytest.mark.parametrize("family", [path.stem for path in sorted(FAMILIES.glob("*.gguf"))])
def test_llama_cpp_computes_with_a_single_what_it_computes_with_merged_weights(tmp_path, family):
    """With an adapter for every tensor that is not refused; those that are refused have no effect."""
    base = FAMILIES / f"{family}.gguf"
    shapes = read_base(base)
    pairs = drawn(shapes, accepted(shapes))
    path = write_adapter(tmp_path / "a.gguf", pairs, shapes.architecture, alpha=8.0)
    merged_file = merged(base, tmp_path / "merged.gguf", pairs, 0.5 * 8 / 4)
    with tiny_model(base) as model, tiny_model(merged_file) as other:
        bare, found, expected = model.logits(), model.logits(single(base, path, 0.5)), other.logits()
        assert np.abs(found - expected).max() < LARGE_ERRORS.get(family, 1e-4)
        assert np.abs(found - bare).max() > 1
        for target in refused(shapes):
            dead = write_adapter(tmp_path / "dead.gguf", drawn(shapes, [target]), shapes.architecture)
            np.testing.assert_array_equal(model.logits(dead), bare, target)


def test_llama_cpp_computes_with_a_folder_of_peft_what_it_computes_with_merged_weights(tmp_path):
    """Rows of queries and keys are put in llama.cpp's order, which is undone here by indices."""
    shapes = read_base(LLAMA)
    modules = {
        "blk.0.attn_q.weight": "self_attn.q_proj",
        "blk.0.attn_k.weight": "self_attn.k_proj",
        "blk.0.attn_v.weight": "self_attn.v_proj",
        "blk.0.ffn_up.weight": "mlp.up_proj",
    }
    pairs = drawn(shapes, [*modules])
    tensors: dict[str, np.ndarray] = {}
    for target, (a, b) in pairs.items():
        heads = {"attn_q": 4, "attn_k": 2}.get(target.split(".")[2])
        rows = np.arange(len(b))
        if heads:
            rows = rows.reshape(heads, -1, 2).swapaxes(1, 2).ravel()  # all first ones of a head, then all second
        tensors |= peft_names(f"model.layers.0.{modules[target]}", (a, b[rows]))
    folder = write_peft(tmp_path / "p", tensors, use_rslora=True)
    merged_file = merged(LLAMA, tmp_path / "merged.gguf", pairs, 8 / 4**0.5)
    with tiny_model(LLAMA) as model, tiny_model(merged_file) as other:
        assert np.abs(model.logits(single(LLAMA, folder)) - other.logits()).max() < 1e-4
