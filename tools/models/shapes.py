"""Shapes of GGUF models with random weights: sizes, tensors, and the scale of the weights.

The scale of the weights is chosen so that a random model behaves like a talkative one: logits are finite with a
standard deviation of about `LOGIT_STD`, greedy decoding visits many tokens, and end-of-sequence is as likely as any
other token. Three choices make it so: weights scale with 1/sqrt(fan-in), so that every block writes values of order
one; embeddings are small beside that, so that tied embeddings do not make every token predict itself; and the last
norm brings the logits to their size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from math import sqrt

EMBEDDING_STD = 0.02
LOGIT_STD = 3.0
ATTENTION_GAIN = 2.0  # standard deviation of the attention scores: above 1, so that a token looks at few others
NORM_SPREAD = 0.1  # relative; norms of exactly one would hide a norm that is applied in the wrong place
BIAS_STD = 0.1
_ROUTER = "ffn_gate_inp.weight"
_CONVOLUTION = "shortconv.conv.weight"
_POSITIONS = "position_embd.weight"
CONVOLVED = 3
"""Tokens that a short convolution looks at."""


@dataclass(frozen=True)
class Architecture:
    """Tensors and limits specific to one llama.cpp architecture."""

    qkv_bias: bool = False
    qk_norm: bool = False
    free_head_dim: bool = True  # n_head * head_dim may differ from n_embd
    experts: bool = False  # a token is fed forward by a few of many blocks, which a router chooses
    convolves: bool = False  # layers that do not attend have a short convolution, which is recurrent
    last_norm: str = "output_norm.weight"


ARCHITECTURES = {
    "llama": Architecture(),
    "qwen2": Architecture(qkv_bias=True, free_head_dim=False),
    "qwen3": Architecture(qk_norm=True),
    "qwen3moe": Architecture(qk_norm=True, experts=True),
    "lfm2": Architecture(qk_norm=True, free_head_dim=False, convolves=True, last_norm="token_embd_norm.weight"),
}


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder-only transformer, in llama.cpp's terms.

    `arch` is a key of `ARCHITECTURES`; `n_ctx_train` is in tokens; `n_ff` is the width of the gated feed-forward
    block, of each expert where there are some; `n_expert_used` of `n_expert` work on a token; with `tied_embeddings`
    the output matrix is the embedding matrix and is not stored. One layer in `attention_every` attends, where the
    others can do something else (lfm2).

    Raises ValueError for sizes that cannot be a model, naming the field, what came and what is allowed.
    """

    arch: str = "qwen3"
    n_layer: int = 2
    n_embd: int = 64
    n_head: int = 4
    n_head_kv: int = 2
    head_dim: int = 32
    n_ff: int = 128
    n_expert: int = 1
    n_expert_used: int = 1
    attention_every: int = 1
    n_ctx_train: int = 4096
    rope_theta: float = 10_000.0
    rms_eps: float = 1e-6
    tied_embeddings: bool = True

    def __post_init__(self) -> None:
        if self.arch not in ARCHITECTURES:
            raise ValueError(f"arch={self.arch!r} is not known here; allowed: {', '.join(ARCHITECTURES)}")
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, str | bool) and not value > 0:
                raise ValueError(f"{field.name}={value} must be positive")
        if self.n_head % self.n_head_kv:
            raise ValueError(f"n_head={self.n_head} must be a multiple of n_head_kv={self.n_head_kv}")
        if self.head_dim % 2:
            raise ValueError(f"head_dim={self.head_dim} must be even: rotary embeddings turn pairs")
        if (self.n_expert > 1) is not ARCHITECTURES[self.arch].experts:
            wanted = "above 1" if ARCHITECTURES[self.arch].experts else "1: the architecture has no experts"
            raise ValueError(f"{self.arch} needs n_expert {wanted}, found {self.n_expert}")
        if (self.attention_every > 1) is not ARCHITECTURES[self.arch].convolves:
            wanted = "above 1" if ARCHITECTURES[self.arch].convolves else "1: every layer of the architecture attends"
            raise ValueError(f"{self.arch} needs attention_every {wanted}, found {self.attention_every}")
        if self.n_expert_used > self.n_expert:
            raise ValueError(f"n_expert_used={self.n_expert_used} must not be above n_expert={self.n_expert}")
        if not ARCHITECTURES[self.arch].free_head_dim and self.q_dim != self.n_embd:
            raise ValueError(
                f"{self.arch} needs n_head * head_dim = n_embd, found {self.n_head} * {self.head_dim} = {self.q_dim} "
                f"and n_embd={self.n_embd}"
            )

    @property
    def q_dim(self) -> int:
        """Width of all query heads."""
        return self.n_head * self.head_dim

    @property
    def kv_dim(self) -> int:
        """Width of all key (or value) heads."""
        return self.n_head_kv * self.head_dim

    def attends(self, layer: int) -> bool:
        """True if `layer` has attention: the last one of every `attention_every`."""
        return (layer + 1) % self.attention_every == 0

    @property
    def row_sizes(self) -> dict[str, int]:
        """The row lengths of the matrices, by name, which must be multiples of a quantised type's block."""
        return {"n_embd": self.n_embd, "n_head * head_dim": self.q_dim, "n_ff": self.n_ff}


SHAPES = {
    "tiny": Shape(),
    "tiny-llama": Shape(arch="llama", tied_embeddings=False, rms_eps=1e-5),
    "tiny-qwen2": Shape(arch="qwen2", head_dim=16),
    "tiny-qwen3moe": Shape(arch="qwen3moe", n_ff=64, n_expert=8, n_expert_used=2),
    "tiny-lfm2": Shape(arch="lfm2", n_layer=4, head_dim=16, attention_every=2),
    "tiny-256": Shape(n_embd=256, head_dim=64, n_ff=512),
    "llama-5m": Shape(arch="llama", n_layer=6, n_embd=256, n_head=8, n_head_kv=4, n_ff=768, rms_eps=1e-5),
    "smolvlm-256m": Shape("llama", 30, 576, 9, 3, 64, 1536, n_ctx_train=8192, rope_theta=1e5, rms_eps=1e-5),
    "qwen3-0.6b": Shape("qwen3", 28, 1024, 16, 8, 128, 3072, n_ctx_train=40_960, rope_theta=1e6),
    # Of the kind of Qwen3-30B-A3B, and about LFM2-350M, with as much to read and to compute as a small machine can.
    # Their experts' rows are multiples of 256, so that there are K-quants of them.
    "qwen3moe-0.7b": Shape("qwen3moe", 16, 1024, 16, 4, 128, 512, 24, 3, n_ctx_train=40_960, rope_theta=1e6),
    "lfm2-350m": Shape("lfm2", 16, 1024, 16, 8, 64, 4608, attention_every=3, n_ctx_train=32_768, rope_theta=1e6),
}


def named_shape(name: str) -> Shape:
    """Return the shape called `name`. Raises ValueError with the known names for any other."""
    if name not in SHAPES:
        raise ValueError(f"no shape is called {name!r}; allowed: {', '.join(SHAPES)}")
    return SHAPES[name]


@dataclass(frozen=True)
class TensorSpec:
    """One tensor and the normal distribution its weights are drawn from.

    `dims` is in NumPy order, (rows, row length) for a matrix and (experts, rows, row length) for those of all experts:
    GGUF stores them the other way round.
    """

    name: str
    dims: tuple[int, ...]
    mean: float
    std: float

    @property
    def is_matrix(self) -> bool:
        """True for what gets the file's type; norms, biases, routers, short convolutions, positions stay F32."""
        return len(self.dims) > 1 and not self.name.endswith((_ROUTER, _CONVOLUTION, _POSITIONS))


def tensor_specs(shape: Shape, n_vocab: int) -> Iterator[TensorSpec]:
    """Yield every tensor of a model with `shape` and `n_vocab` tokens, in file order."""
    logit_gain = LOGIT_STD / (EMBEDDING_STD * sqrt(shape.n_embd))
    yield TensorSpec("token_embd.weight", (n_vocab, shape.n_embd), 0.0, EMBEDDING_STD)
    for layer in range(shape.n_layer):
        yield from (_attention if shape.attends(layer) else _convolution)(shape, f"blk.{layer}.")
        yield from _feed_forward(shape, f"blk.{layer}.")
    yield _norm(ARCHITECTURES[shape.arch].last_norm, shape.n_embd, logit_gain)
    if not shape.tied_embeddings:
        yield TensorSpec("output.weight", (n_vocab, shape.n_embd), 0.0, EMBEDDING_STD)


def _attention(shape: Shape, block: str) -> Iterator[TensorSpec]:
    arch = ARCHITECTURES[shape.arch]
    yield _norm(block + "attn_norm.weight", shape.n_embd)
    yield _matrix(block + "attn_q.weight", shape.q_dim, shape.n_embd, ATTENTION_GAIN)
    yield _matrix(block + "attn_k.weight", shape.kv_dim, shape.n_embd)
    yield _matrix(block + "attn_v.weight", shape.kv_dim, shape.n_embd)
    if arch.qkv_bias:
        for part, width in (("q", shape.q_dim), ("k", shape.kv_dim), ("v", shape.kv_dim)):
            yield TensorSpec(f"{block}attn_{part}.bias", (width,), 0.0, BIAS_STD)
    if arch.qk_norm:  # q_norm removes the scale of attn_q, so it carries the gain
        yield _norm(block + "attn_q_norm.weight", shape.head_dim, ATTENTION_GAIN)
        yield _norm(block + "attn_k_norm.weight", shape.head_dim)
    yield _matrix(block + "attn_output.weight", shape.n_embd, shape.q_dim)


def _convolution(shape: Shape, block: str) -> Iterator[TensorSpec]:
    yield _norm(block + "attn_norm.weight", shape.n_embd)
    yield TensorSpec(block + _CONVOLUTION, (shape.n_embd, CONVOLVED), 0.0, 1 / sqrt(CONVOLVED))
    yield _matrix(block + "shortconv.in_proj.weight", 3 * shape.n_embd, shape.n_embd)
    yield _matrix(block + "shortconv.out_proj.weight", shape.n_embd, shape.n_embd)


def _feed_forward(shape: Shape, block: str) -> Iterator[TensorSpec]:
    experts = ARCHITECTURES[shape.arch].experts
    of_each, end = ((shape.n_expert,), "_exps.weight") if experts else ((), ".weight")
    yield _norm(block + "ffn_norm.weight", shape.n_embd)
    if experts:
        yield _matrix(block + _ROUTER, shape.n_expert, shape.n_embd)
    sizes = (("gate", shape.n_ff, shape.n_embd), ("up", shape.n_ff, shape.n_embd), ("down", shape.n_embd, shape.n_ff))
    for name, n_out, n_in in sizes:
        yield TensorSpec(f"{block}ffn_{name}{end}", (*of_each, n_out, n_in), 0.0, 1 / sqrt(n_in))


def _matrix(name: str, n_out: int, n_in: int, gain: float = 1.0) -> TensorSpec:
    return TensorSpec(name, (n_out, n_in), 0.0, gain / sqrt(n_in))


def _norm(name: str, size: int, gain: float = 1.0) -> TensorSpec:
    return TensorSpec(name, (size,), gain, NORM_SPREAD * gain)
