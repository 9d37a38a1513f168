"""RWKV-7 in NumPy, from its published formulas (Peng et al. 2025, "RWKV-7 Goose with Expressive Dynamic State
Evolution", arXiv:2503.14456, section 4 and appendix), with random weights, and as a GGUF; `transformers` has no such
model. make.py runs it.

Of a token's vector x, and of x' of the token before it, every block makes mixtures x + mix * (x' - x).
"""

from __future__ import annotations

from math import exp
from pathlib import Path

import numpy as np
from gguf import GGUFWriter, LlamaFileType

from tools.models.vocabularies import Vocabulary

ARCHITECTURE = "rwkv7"
LAYERS = 2
WIDTH = HEAD = 64  # one head: llama.cpp's kernel reads heads in steps of 64
INNER = 32  # of the channel mixture
RANK = 8  # of the matrices that make decay, learning rate, value mixture and gate
LOGIT_STD = 3.0
NORM_EPS = 1e-5
HEAD_NORM_EPS = 64e-5
MIXED = "rwkvag"  # receptance, decay, key, value, learning rate, gate: in the order of llama.cpp's file

Array = np.ndarray


class State:
    """What a layer keeps of the tokens so far."""

    def __init__(self) -> None:
        self.time_x = self.channel_x = np.zeros(WIDTH, np.float32)
        self.wkv = np.zeros((HEAD, HEAD), np.float32)  # rows: values; columns: keys


class Rwkv7:
    """A model with random weights.

    Attributes:
        weights: float32 arrays by the names of llama.cpp; matrices as (out, in).
    """

    def __init__(self, n_vocab: int, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self.weights: dict[str, Array] = {}
        self._seen: list[int] = []
        self._states = [State() for _ in range(LAYERS)]
        self._matrix("token_embd", n_vocab, WIDTH)
        self._norm("token_embd_norm")
        for layer in range(LAYERS):
            self._draw_block(f"blk.{layer}.")
        self._norm("output_norm")
        self._matrix("output", n_vocab, WIDTH, LOGIT_STD)

    def logits(self, ids: list[int]) -> Array:
        """Return the logits behind the last of `ids`: float32[n_vocab]. Goes on from those of the last call where `ids`
        begin with them; they must be longer."""
        if ids[: len(self._seen)] != self._seen:
            self._seen, self._states = [], [State() for _ in range(LAYERS)]
        x = np.zeros(WIDTH, np.float32)
        for token in ids[len(self._seen) :]:
            x = self._normed(self.weights["token_embd.weight"][token], "token_embd_norm")
            first_value = None
            for layer, state in enumerate(self._states):
                block = f"blk.{layer}."
                mixed, first_value = self._time_mix(block, self._normed(x, block + "attn_norm"), state, first_value)
                x = x + mixed
                x = x + self._channel_mix(block, self._normed(x, block + "attn_norm_2"), state)
        self._seen = [*ids]
        return self._w("output") @ self._normed(x, "output_norm")

    def _time_mix(self, block: str, x: Array, state: State, first_value: Array | None) -> tuple[Array, Array]:
        """The recurrence over tokens. Returns its output, and the values of the first layer."""
        mixes = self._w(block + "time_mix_lerp_fused").reshape(len(MIXED), WIDTH)
        r_in, w_in, k_in, v_in, a_in, g_in = x + mixes * (state.time_x - x)
        state.time_x = x

        receptance = self._w(block + "time_mix_receptance") @ r_in
        key = self._w(block + "time_mix_key") @ k_in
        value = self._w(block + "time_mix_value") @ v_in
        decay = np.exp(-exp(-0.5) * _sigmoid(self._low_rank(block, "w", w_in, np.tanh)))
        rate = _sigmoid(self._low_rank(block, "a", a_in))
        gate = self._w(block + "time_mix_g2") @ _sigmoid(self._w(block + "time_mix_g1") @ g_in)
        if first_value is None:
            first_value = value
        else:
            value = value + (first_value - value) * _sigmoid(self._low_rank(block, "v", v_in))

        removal = key * self._w(block + "time_mix_k_k")
        removal = removal / max(float(np.linalg.norm(removal)), 1e-12)
        key = key * (1 + (rate - 1) * self._w(block + "time_mix_k_a"))

        # The delta rule: what the state holds under the removal key fades, and the value is stored under the key.
        kept = state.wkv * decay - np.outer(state.wkv @ removal, removal * rate)
        state.wkv = kept + np.outer(value, key)
        out = state.wkv @ receptance
        out = (out - out.mean()) / np.sqrt(out.var() + np.float32(HEAD_NORM_EPS))
        out = out * self._w(block + "time_mix_ln") + self.weights[block + "time_mix_ln.bias"]
        out = out + (receptance * key * self._w(block + "time_mix_r_k")).sum() * value
        return self._w(block + "time_mix_output") @ (out * gate), first_value

    def _channel_mix(self, block: str, x: Array, state: State) -> Array:
        mixed = x + self._w(block + "channel_mix_lerp_k") * (state.channel_x - x)
        state.channel_x = x
        return self._w(block + "channel_mix_value") @ np.maximum(self._w(block + "channel_mix_key") @ mixed, 0) ** 2

    def _low_rank(self, block: str, name: str, x: Array, between: np.ufunc = np.positive) -> Array:
        first, second = self._w(f"{block}time_mix_{name}1"), self._w(f"{block}time_mix_{name}2")
        return second @ between(first @ x) + self._w(f"{block}time_mix_{name}0")

    def _normed(self, x: Array, name: str) -> Array:
        normed = (x - x.mean()) / np.sqrt(x.var() + np.float32(NORM_EPS))
        return normed * self._w(name) + self.weights[name + ".bias"]

    def _w(self, name: str) -> Array:
        return self.weights[name + ".weight"]

    def _draw_block(self, block: str) -> None:
        for norm in ("attn_norm", "attn_norm_2", "time_mix_ln"):
            self._norm(block + norm)
        for name in ("receptance", "key", "value", "output"):
            self._matrix(f"{block}time_mix_{name}", WIDTH, WIDTH)
        for name in "wavg":
            self._matrix(f"{block}time_mix_{name}1", RANK, WIDTH)
            self._matrix(f"{block}time_mix_{name}2", WIDTH, RANK)
        for name, low, high in [("w0", -6, 1), ("a0", -2, 2), ("v0", -1, 1), ("k_k", 0.5, 1), ("k_a", 0.5, 1)]:
            self._keep(f"{block}time_mix_{name}.weight", self._random.uniform(low, high, WIDTH))
        self._keep(f"{block}time_mix_r_k.weight", self._random.normal(0, 0.1, WIDTH))
        self._keep(f"{block}time_mix_lerp_fused.weight", self._random.uniform(0, 1, (len(MIXED), 1, 1, WIDTH)))
        self._keep(f"{block}channel_mix_lerp_k.weight", self._random.uniform(0, 1, WIDTH))
        self._matrix(f"{block}channel_mix_key", INNER, WIDTH)
        self._matrix(f"{block}channel_mix_value", WIDTH, INNER)

    def _matrix(self, name: str, n_out: int, n_in: int, gain: float = 1.0) -> None:
        self._keep(name + ".weight", self._random.normal(0, gain * n_in**-0.5, (n_out, n_in)))

    def _norm(self, name: str) -> None:
        self._keep(name + ".weight", 1 + self._random.normal(0, 0.1, WIDTH))
        self._keep(name + ".bias", self._random.normal(0, 0.1, WIDTH))

    def _keep(self, name: str, weight: Array) -> None:
        self.weights[name] = weight.astype(np.float32)

    def write(self, path: Path, vocabulary: Vocabulary) -> None:
        """Write the model as a GGUF file."""
        writer = GGUFWriter(path, ARCHITECTURE)
        writer.add_name(ARCHITECTURE)
        writer.add_context_length(1 << 20)
        writer.add_embedding_length(WIDTH)
        writer.add_block_count(LAYERS)
        writer.add_feed_forward_length(INNER)
        writer.add_head_count(0)
        writer.add_layer_norm_eps(NORM_EPS)
        writer.add_wkv_head_size(HEAD)
        writer.add_decay_lora_rank(RANK)
        writer.add_iclr_lora_rank(RANK)
        writer.add_value_residual_mix_lora_rank(RANK)
        writer.add_gate_lora_rank(RANK)
        writer.add_file_type(LlamaFileType.ALL_F32)
        vocabulary.add_to(writer)
        for name, weight in self.weights.items():
            writer.add_tensor(name, weight)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))
