"""The config group `runtime`: the engine that runs a model."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields, replace
from typing import Any

from operators.settings.checks import SIZE, check, parse_size
from operators.settings.long_rows import FULL, KV_PARTS, KV_RULE, SMALL, RopeSettings, is_quantised, kv_types_of
from operators.settings.model import AUTO, KERNELS
from pipeline.api.keys import (
    Rule,
    above_0,
    at_least,
    check_values,
    deciding_fields,
    in_data,
    key,
    not_in_data,
    one_of,
    when_given,
)

KV_LAYOUTS = ("per_sequence", "unified")
ADMISSIONS = ("reserve", "optimistic")
MAX_SLOTS = 255
THREADS_PER_CORE = 2
"""Most threads per core: more gain nothing, and a number that the machine cannot start crashes the process."""
DEFAULT_SEQUENCE_TOKENS = 1024
KERNEL_TOKENS = 64
"""CPU flash attention uses another kernel from this many tokens of a row on."""
_ONE, _ONE_OR_NULL = at_least(1, "it is 1 or more"), at_least(1, "it is 1 or more, or null")
_SWITCH: Rule = ("it is auto, true or false", lambda value: value == AUTO or isinstance(value, bool))
_SECONDS = above_0("it is above 0 seconds, or null")


@dataclass
class OptimiseSettings:
    """The optimisations of the engine; each can be switched off, to see what it is worth (`runtime.optimise`).

    None of them changes a row's text where `runtime.deterministic` holds.

    Args:
        compaction: move the highest row into the lowest free slot when rows have ended.
        grouped_prefill: compute prompts of equal length in one call.
        prefix_sharing: compute what prompts, or texts to score, have in common once.
        sample_sharing: compute equal prompts once, and draw their first tokens from the same logits.
        identical_rows: generate once what is bound to come out the same (greedy rows with one prompt).
        longest_first: begin with the rows that have the largest max_tokens.
    """

    compaction: bool = True
    grouped_prefill: bool = True
    prefix_sharing: bool = True
    sample_sharing: bool = True
    identical_rows: bool = True
    longest_first: bool = True


@dataclass
class EngineSettings:
    """The engine that runs the model (`runtime`).

    What is left open (OPEN: `runtime=auto` leaves all of it open) is chosen by a calibration when the first prompts are
    there, and a value given beside it stays.

    Args:
        slots: rows that decode at the same time.
        max_sequence_tokens: prompt and completion tokens of one row at most; null: 1024, of a model with an encoder of
            images 4096, or what it was trained for, if that is less. Memory for the KV cache grows with slots x
            max_sequence_tokens.
        threads: CPU threads, at most two a core; null: all cores this process may use.
        kv: per_sequence (each row its own KV stream; text independent of neighbours) or unified (one pool of cells).
        kv_type: how the KV cache is stored: f16, f32 (twice the memory; exact without flash attention, with it as f16),
            bf16, q8_0 (half the memory, slower), q5_1, q5_0, q4_1, q4_0 or iq4_nl; or one type for keys and one for
            values, as {k: q8_0, v: f16}. Our kernels compute attention to f16 and f32 alone.
        window_cache: full (all tokens of a row stay in the KV cache of layers with a sliding window, so that any prefix
            can be shared) or small (there the window alone; no prefix beyond it is shared). docs/models.md.
        rope: rows longer than the model was trained for, as {scaling: yarn, factor: 4}.
        n_ctx: tokens that fit into the KV cache of the unified layout, and so into one row; null: slots x
            max_sequence_tokens.
        admission: reserve (a row is admitted when its longest completion fits into n_ctx) or optimistic (when what is
            to be expected does; when room runs out, the youngest row gives up its slot, and computes its tokens again
            later).
        snapshot_mb: MiB of memory for snapshots of prefixes, the least recently used of which go first. Recurrent and
            hybrid models share prefixes by them; 0: such models compute every prompt whole.
        image_mb: MiB of memory for what was computed for images, of which the least recently used go first.
        n_batch: prompt tokens at most in one call.
        n_ubatch: tokens that llama.cpp computes at once; longer prompts are cut here.
        kernels: auto (our kernels compute the quantised matrices that they know, and attention, where this CPU has the
            instructions; docs/kernels.md) or llama.cpp (its own do).
        device_sampling: the device leaves of each row's logits the likeliest words, so that no more is copied to the
            host: auto (where layers lie on a GPU), true (anywhere; refused where it cannot be) or false. A call with a
            row that needs all words has them, so no text depends on it (docs/devices.md).
        kv_offload: keep the KV cache of layers on devices there, too; false: in the memory of the machine, where each
            step has to send it from.
        op_offload: have devices compute large products of layers that are on the CPU.
        flash_attention: compute attention in one operation; null leaves it open. By our kernels that is the faster way,
            by llama.cpp's on the CPU for short rows and not for long ones.
        memory_limit: memory that models and their KV caches may take, as "8GiB" or a number of bytes; a graph that
            takes more is refused before anything is loaded. null: what is free, and then there is a warning only.
        lookahead_rows: rows that are sorted by length at a time.
        priority: a column, or an SQL expression over the columns, that is a number: of the rows that wait those with
            the highest are admitted first. A row never waits longer than for the end of its chunk and the next.
        deterministic: keep every row's text independent of its neighbours, bit for bit (CPU).
        stall_timeout_s: seconds after which a run in which nothing moves (no token, no row) is ended, with the stacks
            of all threads in run.log; null: never. More than the longest call takes.
        row_timeout_s: seconds that a row may be in a slot, but for those in which images of others are encoded; one
            that takes longer is rejected, and what is rejected then depends on the machine. null: as long as it takes.
    """

    slots: int = not_in_data(16, *_ONE, open=0)
    max_sequence_tokens: int | None = in_data(None, *_ONE_OR_NULL)
    threads: int | None = not_in_data(None, *_ONE_OR_NULL, open=0)
    kv: str = not_in_data("per_sequence", *one_of(KV_LAYOUTS), open="auto")
    kv_type: Any = in_data("f16", *KV_RULE)
    window_cache: str = when_given(FULL, *one_of((FULL, SMALL)))
    rope: RopeSettings = when_given(RopeSettings)
    n_ctx: int | None = not_in_data(None, *_ONE_OR_NULL)
    admission: str = not_in_data("reserve", *one_of(ADMISSIONS))
    snapshot_mb: int = not_in_data(512, *at_least(0, "it is 0 or more"))
    image_mb: int = not_in_data(512, *at_least(0, "it is 0 or more"))
    n_batch: int = not_in_data(2048, *_ONE)
    # The cells of a small window, whose order is that of sums, are as many as it has tokens and n_ubatch together.
    n_ubatch: int = key(512, *_ONE, fingerprint=lambda settings: settings.window_cache == SMALL)
    kernels: str = not_in_data(AUTO, *one_of(KERNELS))
    device_sampling: Any = not_in_data(AUTO, *_SWITCH)
    flash_attention: bool | None = in_data(True, open=None)
    kv_offload: bool = when_given(True)
    op_offload: bool = when_given(True)
    memory_limit: str | None = not_in_data(None)
    lookahead_rows: int = not_in_data(256, *_ONE)
    deterministic: bool = in_data(True)
    priority: str | None = not_in_data(None)
    stall_timeout_s: float | None = not_in_data(1800.0, *_SECONDS)
    row_timeout_s: float | None = not_in_data(None, *_SECONDS)
    optimise: OptimiseSettings = not_in_data(OptimiseSettings)

    def __post_init__(self) -> None:
        bytes_or_null = self.memory_limit is None or parse_size(self.memory_limit) is not None
        self._check("memory_limit", bytes_or_null, f"{SIZE}, or null")
        self._settle_kv_type()
        if self.open_keys():
            self.with_defaults()  # checks the rest
            return
        check_values(self, "runtime")
        cores = os.cpu_count() or 1
        self._check(
            "threads",
            self.threads is None or self.threads <= THREADS_PER_CORE * cores,
            f"this machine has {cores} cores, and more than {THREADS_PER_CORE * cores} threads gain nothing;"
            " runtime.threads=null takes one a core",
        )
        self._check("slots", self.slots <= MAX_SLOTS, f"llama.cpp decodes {MAX_SLOTS} rows at most")
        self._check("n_ubatch", self.n_ubatch >= self.slots, f"at least slots={self.slots}")
        self._check("n_ubatch", self.n_ubatch <= self.n_batch, f"at most n_batch={self.n_batch}")
        self._check(
            "n_ubatch",
            self.n_ubatch >= 2 * KERNEL_TOKENS or not self.deterministic,
            f"with runtime.deterministic it is at least {2 * KERNEL_TOKENS}, so that every piece of a long prompt has"
            f" {KERNEL_TOKENS} tokens or more",
        )
        self._check(
            "kv",
            self.kv == "unified" or (self.n_ctx is None and self.admission == "reserve"),
            "runtime.n_ctx and runtime.admission=optimistic need runtime.kv=unified; here each slot has its own room",
        )
        self._check(
            "kv",
            self.kv == "per_sequence" or not self.deterministic,
            "in the unified layout a row's text depends on its neighbours; add runtime.deterministic=false",
        )
        self._check(
            "window_cache",
            self.window_cache == FULL or self.kv == "per_sequence",
            f"it is {FULL} with runtime.kv=unified, where rows share the cells",
        )

    def _settle_kv_type(self) -> None:
        """Write one type for both as a text, whichever way it was given. Raises ConfigError for what cannot be."""
        self._check("kv_type", KV_RULE[1](self.kv_type), KV_RULE[0])
        keys, values = types = self.kv_types
        self.kv_type = keys if keys == values else dict(zip(KV_PARTS, types, strict=True))
        if is_quantised(values):
            self._check(
                "flash_attention",
                self.flash_attention is not False,
                f"llama.cpp has values of the KV cache in {values} with flash attention alone; leave it true, or take"
                f" runtime.kv_type={{k: {keys}, v: f16}}",
            )

    def _check(self, key: str, holds: bool, allowed: str) -> None:
        check(holds, f"runtime.{key}", getattr(self, key), allowed)

    @property
    def kv_types(self) -> tuple[str, str]:
        """The types of keys and of values."""
        return kv_types_of(self.kv_type) or ("f16", "f16")

    @property
    def long_rows(self) -> str | None:
        """The line of `runtime.rope`; None without one."""
        return self.rope.describe(self.max_sequence_tokens or DEFAULT_SEQUENCE_TOKENS)

    @property
    def row_limit(self) -> str:
        """The key that limits the length of a row: runtime.n_ctx if not even one row of max_sequence_tokens fits into
        it."""
        longest = self.max_sequence_tokens or DEFAULT_SEQUENCE_TOKENS
        return "runtime.n_ctx" if self.n_ctx is not None and self.n_ctx < longest else "runtime.max_sequence_tokens"

    @property
    def memory_limit_bytes(self) -> int | None:
        """`memory_limit` in bytes."""
        return parse_size(self.memory_limit)

    @property
    def of_bits(self) -> str:
        """The values that can change a bit of a row, by key, as text."""
        return str({key.name: value for key, value in deciding_fields(self)})

    def open_keys(self) -> list[str]:
        """Return the keys that are left to a calibration, which cannot choose what quantised values do not have."""
        settled = ("flash_attention",) if is_quantised(self.kv_types[1]) else ()
        return [key for key, value in OPEN.items() if getattr(self, key) == value and key not in settled]

    def with_defaults(self) -> EngineSettings:
        """Return a copy with the usual values for keys that are left open."""
        usual: dict[str, Any] = {
            f.name: f.default for f in fields(self) if f.name in OPEN and getattr(self, f.name) == OPEN[f.name]
        }
        return replace(self, **usual)


OPEN: dict[str, Any] = {f.name: f.metadata["open"] for f in fields(EngineSettings) if "open" in f.metadata}
"""Values of EngineSettings that leave their key open, for a calibration to choose."""
