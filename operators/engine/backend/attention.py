"""Attention: a model's layers of attention as its file has them, by which `runtime.kv_type` and `runtime.rope` are
checked before llama.cpp sees them, and the bytes of a KV cache are counted."""

from __future__ import annotations

from dataclasses import dataclass

from operators.engine.backend.shape import DecoderShape
from operators.settings.long_rows import KV_BLOCK, KV_PARTS, KV_TYPES, SCALINGS, SMALL, YARN, is_quantised
from operators.settings.runtime import EngineSettings
from pipeline.api.errors import ConfigError


@dataclass(frozen=True)
class Attention:
    """The attention of a model.

    Args:
        architecture: its name.
        layers: how many keep keys and values.
        layer_values: numbers of a token's keys, and of its values, in a layer; None: layers differ, or keep something
            else.
        head_sizes: numbers of a head's key, and of its value; 0: not known.
        latent: keys and values are one, so of one type.
        no_flash: llama.cpp computes it without flash attention, whatever it is told.
        window: tokens that a token sees in layers with a sliding window; 0: there are none.
        window_layers: how many these are; None: not known.
        has_rope: positions are told by RoPE.
        own_table: the file has a table of factors for it.
        scaling: how the file scales it already, in words.
        scalings: those of `runtime.rope` that llama.cpp computes as they are defined.
    """

    architecture: str = ""
    layers: int = 0
    layer_values: tuple[int, int] | None = None
    head_sizes: tuple[int, int] = (0, 0)
    latent: bool = False
    no_flash: bool = False
    window: int = 0
    window_layers: int | None = None
    has_rope: bool = True
    own_table: bool = False
    scaling: str | None = None
    scalings: tuple[str, ...] = SCALINGS

    @property
    def kv_values(self) -> int | None:
        """Numbers of a token in the KV cache, in all layers; None: not known."""
        return None if self.layer_values is None else self.layers * sum(self.layer_values)

    def kv_bytes(self, shape: DecoderShape, settings: EngineSettings) -> int:
        """Return the bytes of the KV cache of a context; 0 if they are not known."""
        if self.layer_values is None:
            return 0
        small = (self.window_layers or 0) if settings.window_cache == SMALL else 0
        cells = (self.layers - small) * shape.kv_cells + small * shape.window_cells(self.window)
        bits = sum(n * KV_TYPES[kind] for n, kind in zip(self.layer_values, settings.kv_types, strict=True))
        return int(cells * bits / 8)

    def keeps_window_alone(self, settings: EngineSettings) -> bool:
        """Return whether some layers keep a window of a row and no more, so that it cannot be cut back."""
        return self.window > 0 and settings.window_cache == SMALL

    def check(self, name: str, settings: EngineSettings) -> None:
        """Raise ConfigError if llama.cpp cannot make a KV cache of `runtime.kv_type` for the model `name`, or
        `runtime.rope` would do nothing, or something else than it says."""
        self._check_kv_type(name, settings)
        if settings.rope.scaling is not None:
            self._check_rope(name, settings)

    def _check_kv_type(self, name: str, settings: EngineSettings) -> None:
        refused = f"runtime.kv_type={settings.kv_type!r} cannot work with {name}: "
        types = settings.kv_types
        for part, kind, size in zip(KV_PARTS, types, self.head_sizes, strict=True):
            if is_quantised(kind) and size % KV_BLOCK:
                raise ConfigError(
                    f"{refused}{kind} ({part}) stores blocks of {KV_BLOCK} numbers, and its heads have {size};"
                    " use f16, bf16 or f32"
                )
        if self.latent and types[0] != types[1]:
            raise ConfigError(f"{refused}the architecture {self.architecture} keeps keys and values as one; name one")
        if self.no_flash and is_quantised(types[1]):
            raise ConfigError(
                f"{refused}llama.cpp has no flash attention for {self.architecture}, without which values are not"
                f" quantised; use runtime.kv_type={{k: {types[0]}, v: f16}}"
            )

    def _check_rope(self, name: str, settings: EngineSettings) -> None:
        refused = f"runtime.rope={{scaling: {settings.rope.scaling}}} cannot work with {name}: "
        if not self.has_rope:
            raise ConfigError(f"{refused}the architecture {self.architecture} has no RoPE; leave runtime.rope out")
        if settings.rope.scaling not in self.scalings:
            remedy = " or ".join(("leave runtime.rope out", *(f"use scaling: {each}" for each in self.scalings)))
            raise ConfigError(
                f"{refused}llama.cpp scales the attention scores of {self.architecture} besides, for which this file"
                f" says nothing or {YARN} alone is defined; {remedy}"
            )
        if self.own_table:
            raise ConfigError(
                f"{refused}its file has a table of RoPE factors, which llama.cpp would multiply with the scaling; leave"
                " runtime.rope out"
            )
        if self.scaling is not None and settings.rope.original_tokens is None:
            raise ConfigError(
                f"{refused}its file scales RoPE already ({self.scaling}), and runtime.rope replaces that; say of how"
                " many tokens, by runtime.rope.original_tokens, or leave it out"
            )
