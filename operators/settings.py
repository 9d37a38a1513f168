"""The config groups that operators read, as typed dataclasses with value checks.

Hydra composes them from conf/; `__post_init__` runs when the composed config becomes objects, so a value that cannot
work is refused before anything is loaded. A field whose metadata says `fingerprint: False` may change between two
attempts of one run, because it cannot change a byte of data/.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from operators.sampling_rules import PER_ROW_KEYS, STEP_ORDER, sampling_rules
from operators.structured.settings import StructuredSettings
from pipeline.errors import ConfigError

NOT_IN_DATA: Mapping[str, Any] = {"fingerprint": False}
KV_LAYOUTS = ("per_sequence", "unified")
KV_TYPES = ("f16", "f32", "q8_0")
ADMISSIONS = ("reserve", "optimistic")
MAX_SLOTS = 255
OPEN: dict[str, Any] = {
    "slots": 0,
    "threads": 0,
    "kv": "auto",
    "n_batch": 0,
    "n_ubatch": 0,
    "pad_tokens": -1,
    "flash_attention": None,
}
"""Values of EngineSettings that leave their key open, for a calibration to choose."""
KERNEL_TOKENS = 64
"""CPU flash attention computes this many tokens of a row and more with another kernel than fewer."""
FINISH_REASONS = ("stop", "stop_string", "length")
DATA_FORMATS = ("auto", "parquet", "jsonl", "csv", "arrow")


def check(holds: bool, key: str, value: object, allowed: str) -> None:
    """Raise ConfigError, naming `key`, its `value` and what is `allowed`, unless the condition `holds`."""
    if not holds:
        raise ConfigError(f"{key}={value!r} cannot work: {allowed}")


def not_in_data(settings: type) -> set[str]:
    """The fields of a settings class that cannot change a byte of data/."""
    return {f.name for f in fields(settings) if f.metadata.get("fingerprint") is False}


def usable_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass
class DataSettings:
    """Where prompts come from (`data`).

    Args:
        path: a file, a directory or a glob.
        format: parquet, jsonl, csv or arrow; auto goes by the file's extension.
        prompt_column: column with the text of the prompt.
        messages_column: column with a list of {role, content}, instead of a prompt column.
        id_column: column whose value, rather than the row's position, seeds the row's random numbers.
        schema: column name to type (int64, double, string, bool, list<string> ...), instead of reading it off the data.
        limit: rows to read at most.
    """

    path: str | None = None
    format: str = "auto"
    prompt_column: str = "prompt"
    messages_column: str | None = None
    id_column: str | None = None
    schema: dict[str, str] | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        check(self.format in DATA_FORMATS, "data.format", self.format, f"it is one of {', '.join(DATA_FORMATS)}")
        check(self.limit is None or self.limit >= 1, "data.limit", self.limit, "it is 1 or more, or null for all rows")


@dataclass
class ModelSettings:
    """Which model (`model`).

    Args:
        loader: `module:function` that makes the Model from these settings.
        path: the GGUF file.
        repo, file, revision: with model=hub, the GGUF file of a repository on the Hugging Face Hub at a commit or tag.
        chat_template: a Jinja template file instead of the one in the GGUF.
        system: system prompt that is put before every conversation that has none.
        gpu_layers: layers to compute on the GPU: 0 for none, 999 for all.
        options: further keyword arguments for the loader.
    """

    loader: str = "operators.llama.model:load"
    path: str | None = None
    repo: str | None = None
    file: str | None = None
    revision: str | None = None
    chat_template: str | None = None
    system: str | None = None
    gpu_layers: int = 0
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check(self.gpu_layers >= 0, "model.gpu_layers", self.gpu_layers, "0 (CPU) or more; 999 is all layers")


@dataclass
class SamplingSettings:
    """How tokens are drawn (`sampling`). docs/sampling.md has the range and the meaning of each key at length.

    Args:
        temperature: 0 takes the most likely token (greedy).
        top_k: keep the k most likely tokens; 0 keeps all.
        top_p: keep the smallest set of tokens whose probabilities reach top_p; 1 keeps all.
        min_p: keep tokens with at least min_p times the probability of the most likely one; 0 keeps all.
        typical_p: keep the tokens whose surprise is nearest the entropy, up to this probability; 1 keeps all.
        top_n_sigma: keep tokens with a logit at most so many standard deviations below the largest; 0 keeps all.
        dynatemp_range, dynatemp_exponent: the temperature varies with the entropy, by as much as the range; 0: it does
            not.
        repetition_penalty, presence_penalty, frequency_penalty: for tokens among the last penalty_last_n of prompt
            and completion; 1, 0 and 0 are off.
        penalty_last_n: null looks back on the whole row.
        dry_multiplier, dry_base, dry_allowed_length, dry_penalty_last_n, dry_sequence_breakers: the DRY penalty for
            repeating a sequence; a multiplier of 0 is off.
        xtc_probability, xtc_threshold: how often to drop all tokens above the threshold but one; 0 is off.
        mirostat, mirostat_tau, mirostat_eta: 2 keeps the surprise of the tokens near tau; 0 is off.
        logit_bias: token id (a number) or text (a string) to what is added to the logit of it, or of all its tokens.
        bad_words: strings, token ids or lists of token ids that never come.
        order: the steps in the order in which they act; one that is left out does not act.
        max_tokens: completion tokens at most.
        n: completions of each prompt; they differ in their seed.
        min_tokens: the completion does not end by a token before it has so many.
        stop: strings that end a completion.
        stop_token_ids: tokens that end a completion, besides the model's own end-of-generation tokens.
        keep_stop: whether the string or token of `stop` and `stop_token_ids` becomes part of the completion.
        ignore_eos: do not stop at the model's end-of-generation tokens.
        logprobs: record the log-probability of each token, and of so many of the most likely ones; null records none.
        structured: what the text has to be: JSON of a schema, a match of a regex, a choice, a grammar's text.
        per_row: names of columns that override the setting of the same name for their row (null: no override).
    """

    temperature: float = 0.0
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    top_n_sigma: float = 0.0
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_last_n: int | None = 64
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int | None = 64
    dry_sequence_breakers: list[str] = field(default_factory=lambda: ["\n", ":", '"', "*"])
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    logit_bias: Any = None  # a mapping; declared as one it could not be set on the command line (OmegaConf 2.3)
    bad_words: list[Any] = field(default_factory=list)
    order: list[str] = field(default_factory=lambda: list(STEP_ORDER))
    max_tokens: int = 256
    n: int = 1
    min_tokens: int = 0
    stop: list[str] = field(default_factory=list)
    stop_token_ids: list[int] = field(default_factory=list)
    keep_stop: bool = False
    ignore_eos: bool = False
    logprobs: int | None = None
    structured: StructuredSettings = field(default_factory=StructuredSettings)
    per_row: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for key, (holds, allowed) in sampling_rules(vars(self)).items():
            check(holds, f"sampling.{key}", getattr(self, key), allowed)
        unknown = [k for k in self.per_row if k not in PER_ROW_KEYS]
        check(not unknown, "sampling.per_row", unknown, f"a row can override {', '.join(PER_ROW_KEYS)}")


@dataclass
class DecodeSettings:
    """How a completion is made from the model (`decode`). `strategy` is a class, as `module:Class`."""

    strategy: str = "operators.decoding.autoregressive:Autoregressive"


@dataclass
class OptimiseSettings:
    """What makes the engine fast; each can be switched off, to see what it is worth (`runtime.optimise`).

    None of them changes a row's text where `runtime.deterministic` holds.

    Args:
        compaction: move the highest row into the lowest free slot when rows have ended.
        grouped_prefill: compute prompts of equal length in one call.
        padded_prefill: and those that are up to `runtime.pad_tokens` shorter.
        prefix_sharing: compute what prompts have in common once.
        sample_sharing: compute equal prompts once, and draw their first tokens from the same logits.
        identical_rows: generate once what is bound to come out the same (greedy rows with one prompt).
        longest_first: begin with the rows that have the largest max_tokens.
    """

    compaction: bool = True
    grouped_prefill: bool = True
    padded_prefill: bool = True
    prefix_sharing: bool = True
    sample_sharing: bool = True
    identical_rows: bool = True
    longest_first: bool = True


@dataclass
class EngineSettings:
    """How the model is run (`runtime`).

    What is left open (OPEN: `runtime=auto` leaves all of it open) is chosen by a calibration when the first prompts are
    there, and a value given beside it stays.

    Args:
        slots: rows that decode at the same time.
        max_sequence_tokens: prompt and completion tokens of one row at most; null: 1024 or what the model was trained
            for, if that is less. Memory for the KV cache grows with slots x max_sequence_tokens.
        threads: CPU threads; null: all cores this process may use.
        kv: per_sequence (each row its own KV stream; text independent of neighbours) or unified (one pool of cells).
        kv_type: how the KV cache is stored: f16, f32 (exact, twice the memory) or q8_0 (half of it, slower).
        n_ctx: tokens that fit into the KV cache of the unified layout; null: slots x max_sequence_tokens.
        admission: reserve (a row is admitted when its longest completion fits into n_ctx) or optimistic (when what is
            to be expected does; when room runs out, the youngest row gives up its slot and goes on later).
        swap_mb: MiB of memory for rows that gave up their slot; beyond that they compute their tokens again.
        preempt_every: have the youngest row give up its slot every so many steps. For tests.
        contexts: contexts that decode side by side, each with `slots` and a thread of its own, for machines with
            several devices or NUMA nodes. They share the cores: threads are divided among them.
        n_batch: prompt tokens at most in one call.
        n_ubatch: tokens that llama.cpp computes at once; longer prompts are cut here.
        pad_tokens: prompts that are up to this much shorter are padded to compute them in one call.
        flash_attention: use llama.cpp's flash attention kernels; null leaves it open. On the CPU they pay for short
            rows and not for long ones.
        lookahead_rows: rows that are sorted by length at a time.
        priority: a column, or an SQL expression over the columns, that is a number: of the rows that wait those with
            the highest are admitted first. A row never waits longer than for the end of its chunk and the next.
        refill: free slots to wait for before new rows are admitted; never waits while nothing decodes.
        deterministic: keep every row's text independent of its neighbours, bit for bit (CPU).
        stall_timeout_s: seconds after which a run in which nothing moves (no token, no row) is ended, with the stacks
            of all threads in run.log; null: never. More than the longest call takes.
        row_timeout_s: seconds that a row may be in a slot; one that takes longer is rejected, and what is rejected then
            depends on the machine. null: as long as it takes.
        shuffle_window: admit the rows of a window in an order drawn with this seed, instead of by length. For tests.
    """

    slots: int = field(default=16, metadata=NOT_IN_DATA)
    max_sequence_tokens: int | None = None
    # Threads and layout change the last bits. Where these matter, operators fingerprint what they come to: `exactness`.
    threads: int | None = field(default=None, metadata=NOT_IN_DATA)
    kv: str = field(default="per_sequence", metadata=NOT_IN_DATA)
    kv_type: str = "f16"
    n_ctx: int | None = field(default=None, metadata=NOT_IN_DATA)
    admission: str = field(default="reserve", metadata=NOT_IN_DATA)
    swap_mb: int = field(default=1024, metadata=NOT_IN_DATA)
    preempt_every: int | None = field(default=None, metadata=NOT_IN_DATA)
    contexts: int = field(default=1, metadata=NOT_IN_DATA)
    n_batch: int = field(default=2048, metadata=NOT_IN_DATA)
    n_ubatch: int = field(default=512, metadata=NOT_IN_DATA)
    pad_tokens: int = field(default=4, metadata=NOT_IN_DATA)
    flash_attention: bool | None = True
    lookahead_rows: int = field(default=256, metadata=NOT_IN_DATA)
    refill: int = field(default=1, metadata=NOT_IN_DATA)
    deterministic: bool = True
    priority: str | None = field(default=None, metadata=NOT_IN_DATA)
    stall_timeout_s: float | None = field(default=1800.0, metadata=NOT_IN_DATA)
    row_timeout_s: float | None = field(default=None, metadata=NOT_IN_DATA)
    shuffle_window: int | None = field(default=None, metadata=NOT_IN_DATA)
    optimise: OptimiseSettings = field(default_factory=OptimiseSettings, metadata=NOT_IN_DATA)

    def __post_init__(self) -> None:
        if self.open_keys():
            self.with_defaults()  # checks the rest
            return
        for key in ("slots", "n_batch", "n_ubatch", "lookahead_rows", "refill", "contexts"):
            check(getattr(self, key) >= 1, f"runtime.{key}", getattr(self, key), "it is 1 or more")
        for key in ("pad_tokens", "swap_mb"):
            check(getattr(self, key) >= 0, f"runtime.{key}", getattr(self, key), "it is 0 or more")
        for key in ("max_sequence_tokens", "threads", "n_ctx", "preempt_every"):
            value = getattr(self, key)
            check(value is None or value >= 1, f"runtime.{key}", value, "it is 1 or more, or null")
        for key in ("stall_timeout_s", "row_timeout_s"):
            value = getattr(self, key)
            check(value is None or value > 0, f"runtime.{key}", value, "it is above 0 seconds, or null")
        check(self.kv in KV_LAYOUTS, "runtime.kv", self.kv, f"it is one of {', '.join(KV_LAYOUTS)}")
        check(self.kv_type in KV_TYPES, "runtime.kv_type", self.kv_type, f"it is one of {', '.join(KV_TYPES)}")
        check(self.slots <= MAX_SLOTS, "runtime.slots", self.slots, f"llama.cpp decodes {MAX_SLOTS} rows at most")
        check(self.refill <= self.slots, "runtime.refill", self.refill, f"it is at most runtime.slots={self.slots}")
        check(self.n_ubatch >= self.slots, "runtime.n_ubatch", self.n_ubatch, f"at least slots={self.slots}")
        check(self.n_ubatch <= self.n_batch, "runtime.n_ubatch", self.n_ubatch, f"at most n_batch={self.n_batch}")
        self._check_layout()

    def exactness(self) -> dict[str, object]:
        """Where texts are to be the same to the bit: what of the machine's side can change a bit."""
        if not self.deterministic:
            return {}
        return {"threads": self.with_defaults().threads or usable_cores(), "kv": self.with_defaults().kv}

    def open_keys(self) -> list[str]:
        """The keys that a calibration is to choose."""
        return [key for key, value in OPEN.items() if getattr(self, key) == value]

    def with_defaults(self) -> EngineSettings:
        """The same with the usual values for what is open."""
        usual: dict[str, Any] = {f.name: f.default for f in fields(EngineSettings)}
        return replace(self, **{key: usual[key] for key in self.open_keys()})

    def _check_layout(self) -> None:
        check(
            self.n_ubatch >= 2 * KERNEL_TOKENS or not self.deterministic,
            "runtime.n_ubatch",
            self.n_ubatch,
            f"with runtime.deterministic it is at least {2 * KERNEL_TOKENS}, so that every piece of a long prompt has"
            f" {KERNEL_TOKENS} tokens or more",
        )
        check(
            self.kv == "unified" or (self.n_ctx is None and self.admission == "reserve"),
            "runtime.kv",
            self.kv,
            "runtime.n_ctx and runtime.admission=optimistic need runtime.kv=unified; here each slot has its own room",
        )
        check(self.admission in ADMISSIONS, "runtime.admission", self.admission, f"one of {', '.join(ADMISSIONS)}")
        check(
            self.kv == "per_sequence" or not self.deterministic,
            "runtime.kv",
            self.kv,
            "in the unified layout a row's text depends on its neighbours; add runtime.deterministic=false",
        )


@dataclass
class RetrySettings:
    """Which completions of other runs are made again though the store has them (`store.retry`).

    Args:
        finish_reason: those that ended so: stop, stop_string, length.
    """

    finish_reason: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        unknown = [reason for reason in self.finish_reason if reason not in FINISH_REASONS]
        check(not unknown, "store.retry.finish_reason", unknown, f"each is one of {', '.join(FINISH_REASONS)}")


@dataclass
class StoreSettings:
    """Where finished completions are kept, so that a restart or a later run finds them (`store`).

    Args:
        enabled: journal completions at all.
        path: the SQLite file; null: completions.sqlite in the output directory. May be shared between runs.
        sync: `process` survives the death of the process, `power` also that of the machine.
        retry: what is made again though it is there.
    """

    enabled: bool = field(default=True, metadata=NOT_IN_DATA)
    path: str | None = field(default=None, metadata=NOT_IN_DATA)
    sync: str = field(default="process", metadata=NOT_IN_DATA)
    retry: RetrySettings = field(default_factory=RetrySettings)

    def __post_init__(self) -> None:
        check(self.sync in ("process", "power"), "store.sync", self.sync, "it is process or power")


@dataclass
class OutputSettings:
    """What the result files hold (`output`).

    Args:
        compression: of Parquet shards: zstd, snappy, gzip, lz4 or none.
        prompt_text: keep the exact text that the model was given.
        completion_ids: keep the token ids of the completion.
        preview: rows to print at the end of a run.
        preview_columns: the columns of these rows to print; empty prints all.
    """

    compression: str = "zstd"
    prompt_text: bool = False
    completion_ids: bool = False
    preview: int = field(default=0, metadata=NOT_IN_DATA)
    preview_columns: list[str] = field(default_factory=list, metadata=NOT_IN_DATA)

    def __post_init__(self) -> None:
        check(self.preview >= 0, "output.preview", self.preview, "it is 0 (none) or more")
        known = ("zstd", "snappy", "gzip", "lz4", "none")
        check(self.compression in known, "output.compression", self.compression, f"it is one of {', '.join(known)}")
