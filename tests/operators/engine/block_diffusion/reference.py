"""Block diffusion as it is defined: float64, the text computed anew in every step under an explicit mask, no cache.

The model is Qwen3's architecture, dense or with experts, with the weights of a GGUF file. Written apart from the
engine: it shares no code with it, and it is the law for what the engine has to give.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGUFReader

WEIGHTS = ("gate", "up", "down")


@dataclass(frozen=True)
class Rules:
    """`shift`: logits are read one position before."""

    length: int
    steps: int
    remasking: str = "low_confidence_static"
    threshold: float = 0.85
    eb_threshold: float = 0.35
    shift: bool = False


class Qwen3:
    """The forward pass. `mask`: bool [tokens, tokens], whether a token (row) sees another one (column)."""

    def __init__(self, path: Path) -> None:
        reader = GGUFReader(path)
        arch = reader.fields["general.architecture"].contents()
        self._t = {t.name: np.asarray(t.data, np.float64) for t in reader.tensors}

        def number(key: str) -> float:
            return float(reader.fields[f"{arch}.{key}"].contents())

        self.layers = int(number("block_count"))
        self.heads, self.kv_heads = int(number("attention.head_count")), int(number("attention.head_count_kv"))
        self.dim = int(number("attention.key_length"))
        self.theta, self.eps = number("rope.freq_base"), number("attention.layer_norm_rms_epsilon")
        self.n_vocab = len(self._t["token_embd.weight"])
        self.used = int(number("expert_used_count")) if arch == "qwen3moe" else 0

    def logits(self, ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """float64 [tokens, n_vocab]."""
        t = self._t
        x = t["token_embd.weight"][ids]
        for layer in range(self.layers):
            name = f"blk.{layer}."
            x = x + self._attention(self._norm(x, t[name + "attn_norm.weight"]), name, mask)
            h = self._norm(x, t[name + "ffn_norm.weight"])
            x = x + (self._experts(h, name) if self.used else _fed(h, *(t[name + f"ffn_{w}.weight"] for w in WEIGHTS)))
        out = t.get("output.weight", t["token_embd.weight"])
        return self._norm(x, t["output_norm.weight"]) @ out.T

    def _experts(self, h: np.ndarray, name: str) -> np.ndarray:
        """The router's likeliest experts work on a token, weighted by its probabilities for them, which sum to one."""
        every = [self._t[name + f"ffn_{w}_exps.weight"] for w in WEIGHTS]
        odds = np.exp(h @ self._t[name + "ffn_gate_inp.weight"].T)
        out = np.zeros_like(h)
        for i in range(len(h)):
            best = np.argsort(-odds[i])[: self.used]
            for expert in best:
                own = _fed(h[i : i + 1], *(weights[expert] for weights in every))[0]
                out[i] += odds[i, expert] / odds[i, best].sum() * own
        return out

    def _attention(self, h: np.ndarray, name: str, mask: np.ndarray) -> np.ndarray:
        t, n = self._t, len(h)
        q = (h @ t[name + "attn_q.weight"].T).reshape(n, self.heads, self.dim)
        k = (h @ t[name + "attn_k.weight"].T).reshape(n, self.kv_heads, self.dim)
        v = (h @ t[name + "attn_v.weight"].T).reshape(n, self.kv_heads, self.dim)
        q = self._rope(self._norm(q, t[name + "attn_q_norm.weight"]))
        k = self._rope(self._norm(k, t[name + "attn_k_norm.weight"]))
        group = self.heads // self.kv_heads
        k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
        scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(self.dim)
        scores = np.where(mask[None], scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        return np.einsum("hij,jhd->ihd", weights, v).reshape(n, -1) @ t[name + "attn_output.weight"].T

    def _norm(self, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + self.eps) * weight

    def _rope(self, x: np.ndarray) -> np.ndarray:
        """NeoX: a head's first half turns with its second."""
        half = self.dim // 2
        angles = np.arange(len(x))[:, None] * self.theta ** (-np.arange(half) / half)
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        one, other = x[..., :half], x[..., half:]
        return np.concatenate([one * cos - other * sin, one * sin + other * cos], axis=-1)


def _fed(h: np.ndarray, gate: np.ndarray, up: np.ndarray, down: np.ndarray) -> np.ndarray:
    opened = h @ gate.T
    return (opened / (1 + np.exp(-opened)) * (h @ up.T)) @ down.T


def generate(model: Qwen3, prompt: Sequence[int], max_tokens: int, rules: Rules, mask_id: int) -> list[int]:
    """The completion's ids."""
    length, n = rules.length, len(prompt)
    blocks = -(-(n + max_tokens) // length)
    x = np.full(blocks * length, mask_id)
    x[:n] = prompt
    known = np.arange(len(x)) < n
    seen = x.copy()  # what later blocks see of a block
    for block in range(n // length, blocks):
        start, end = block * length, (block + 1) * length
        for step in range(10**6):
            if known[start:end].all():
                break
            ids = np.concatenate([seen[:start], x[start:end]])
            logits = model.logits(ids, _mask(len(ids), length))
            if rules.shift:
                logits = np.concatenate([logits[:1], logits[:-1]])
            _commit(x[start:end], known[start:end], logits[start:end], step, rules, mask_id)
        seen[start:end] = x[start:end]
    made: list[int] = x[n : n + max_tokens].tolist()
    return made


def _mask(count: int, length: int) -> np.ndarray:
    """Each token sees its own block and those before it."""
    at = np.arange(count)
    mask: np.ndarray = at[None, :] // length <= at[:, None] // length
    return mask


def _commit(x: np.ndarray, known: np.ndarray, logits: np.ndarray, step: int, rules: Rules, mask_id: int) -> None:
    """Views of a block: what is committed is written into them."""
    logits = logits.copy()
    logits[:, mask_id] = -np.inf
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    candidates, confidence = p.argmax(axis=1), p.max(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -np.where(p > 0, p * np.log(p), 0.0).sum(axis=1)
    steps = min(rules.steps, rules.length)
    count = rules.length // steps + (step < rules.length % steps)
    places = [int(i) for i in np.flatnonzero(~known)]
    chosen = sorted(places, key=lambda i: -confidence[i])[:count]
    if rules.remasking == "sequential":
        chosen = places[:count]
    elif rules.remasking == "low_confidence_dynamic":
        sure = [i for i in places if confidence[i] > rules.threshold]
        chosen = sure if len(sure) >= count else chosen
    elif rules.remasking == "entropy_bounded":
        order = sorted(places, key=lambda i: entropy[i])
        sums = np.cumsum([entropy[i] for i in order])
        chosen = order[: max(1, int((sums < rules.eb_threshold).sum()))]
    x[chosen] = candidates[chosen]
    known[chosen] = True
