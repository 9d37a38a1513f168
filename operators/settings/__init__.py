"""The config groups that operators read, as typed dataclasses with value checks.

Hydra composes them from conf/; `__post_init__` runs when the composed config becomes objects, so a value that cannot
work is refused before anything is loaded. A field whose metadata says `fingerprint: False` may change between two
attempts of one run, because it cannot change a byte of data/.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any
from urllib.parse import urlsplit

from operators.settings.checks import NOT_IN_DATA, check
from operators.settings.sampling_rules import PER_ROW_KEYS, STEP_ORDER, sampling_rules
from operators.settings.structured import StructuredSettings
from pipeline.api.errors import ConfigError, did_you_mean

FINISH_REASONS = ("stop", "stop_string", "length")
COMPRESSIONS = {
    "parquet": ("zstd", "snappy", "gzip", "lz4", "none"),
    "jsonl": ("none", "gzip", "zstd"),
    "arrow": ("none", "zstd", "lz4"),
}
"""By output format; the first is the default. Arrow files without one can be memory-mapped."""
LEVELS = {"zstd": 22, "gzip": 9}
"""The highest level of those compressions that have levels."""


@dataclass
class DataSettings:
    """Where prompts come from (`data`). docs/data.md has the formats, URLs and datasets at length.

    Args:
        path: a file, a directory, a glob, a URL of one of these, or a list of them.
        storage_options: what fsspec takes for URLs: endpoint, keys. Credentials in it are never written down.
        dataset: instead of a path, a dataset on the Hugging Face Hub (owner/name) or a folder laid out like one.
        config, split, revision: of the dataset.
        format: parquet, jsonl, csv, arrow, or lines (each line of a text file as the column `text`); auto goes by the
            file's extension.
        prompt_column: column with the text of the prompt.
        messages_column: column with a list of {role, content}, instead of a prompt column.
        id_column: column whose value, rather than the row's position, seeds the row's random numbers. A null leaves it
            to the position.
        schema: column name to type (int64, double, string, bool, list<string> ...), instead of reading it off the data.
        rename: column of the files to the name that it gets; `row` and `lineage` need another one.
        limit: rows to read at most.
    """

    # What is Any is checked below: OmegaConf 2.3 can declare no unions, and no mappings that the command line can set.
    path: Any = None
    storage_options: Any = field(default=None, metadata=NOT_IN_DATA)
    dataset: str | None = field(default=None, metadata=NOT_IN_DATA)
    config: str | None = field(default=None, metadata=NOT_IN_DATA)
    split: str = field(default="train", metadata=NOT_IN_DATA)
    revision: str | None = field(default=None, metadata=NOT_IN_DATA)
    format: str = "auto"
    prompt_column: str = "prompt"
    messages_column: str | None = None
    id_column: str | None = None
    schema: Any = None
    rename: Any = None
    limit: int | None = None

    def __post_init__(self) -> None:
        paths = self.path if isinstance(self.path, list) else [self.path]
        fit = self.path is None or (paths and all(isinstance(path, str) and path for path in paths))
        check(bool(fit), "data.path", self.path, "it is a path, a URL, or a list of these")
        check(_texts(self.schema), "data.schema", self.schema, "it maps names of columns to types, or is null")
        check(_texts(self.rename), "data.rename", self.rename, "it maps names in the files to others, or is null")
        options = isinstance(self.storage_options, dict | None)  # its value stands in no message
        check(options, "data.storage_options", "...", "it maps names of options to values, or is null")
        check(self.limit is None or self.limit >= 1, "data.limit", self.limit, "it is 1 or more, or null for all rows")


def _texts(mapping: Any) -> bool:
    """Whether it is null, or maps texts to texts."""
    return mapping is None or (
        isinstance(mapping, dict) and all(isinstance(text, str) for pair in mapping.items() for text in pair)
    )


@dataclass
class ModelSettings:
    """Which model (`model`).

    Args:
        loader: `module:function` that makes the Model from these settings.
        path: the GGUF file; of a split model (NAME-00001-of-00003.gguf) the first, the others beside it.
        repo, file, revision: with model=hub, the GGUF file of a repository on the Hugging Face Hub at a commit or tag.
        chat_template: a Jinja template file instead of the one in the GGUF.
        system: system prompt that is put before every conversation that has none.
        gpu_layers: layers to compute on the GPU: 0 for none, 999 for all. Needs a llama.cpp that was built for the GPU.
        options: further keyword arguments for the loader; one that it does not know is an error.
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
            check(holds, f"sampling.{key}", getattr(self, key), f"allowed: {allowed}")
        unknown = [k for k in self.per_row if k not in PER_ROW_KEYS]
        near = did_you_mean(unknown[0], PER_ROW_KEYS).removeprefix("; ") if unknown else ""
        check(not unknown, "sampling.per_row", unknown, near or f"a row can override {', '.join(PER_ROW_KEYS)}")


@dataclass
class DecodeSettings:
    """How a completion is made from the model (`decode`). `strategy` is a class, as `module:Class`."""

    strategy: str = "operators.engine.strategies.autoregressive:Autoregressive"


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
class CardSettings:
    """What the dataset card says that the run cannot know (`output.card`).

    Args:
        license: as the Hub spells it: apache-2.0, cc-by-4.0, mit ...
        text: your own words about the data, Markdown.
    """

    license: str | None = None
    text: str | None = None


@dataclass
class OutputSettings:
    """What the result files hold, and where else they go (`output`).

    Args:
        format: parquet, jsonl or arrow (Arrow IPC files).
        compression: what COMPRESSIONS has for the format; auto is the first of these.
        compression_level: of zstd (1 to 22) and gzip (1 to 9); null leaves it to the library.
        prompt_text: keep the exact text that the model was given.
        completion_ids: keep the token ids of the completion.
        preview: rows to print at the end of a run.
        preview_columns: the columns of these rows to print; empty prints all.
        publish: an fsspec URL (s3://bucket/prefix) to which finished files are copied; null keeps them here only.
        storage_options: what its file system is opened with. Kept out of everything that is written.
        retries: how often an upload that failed is tried again, after 1, 2, 4 ... seconds.
        card: of the dataset, README.md beside data/; false writes none.
    """

    format: str = "parquet"
    compression: str = "auto"
    compression_level: int | None = None
    prompt_text: bool = False
    completion_ids: bool = False
    preview: int = field(default=0, metadata=NOT_IN_DATA)
    preview_columns: list[str] = field(default_factory=list, metadata=NOT_IN_DATA)
    publish: str | None = field(default=None, metadata=NOT_IN_DATA)
    storage_options: Any = field(default=None, metadata=NOT_IN_DATA)  # a mapping; see logit_bias
    retries: int = field(default=5, metadata=NOT_IN_DATA)
    card: Any = field(default_factory=CardSettings, metadata=NOT_IN_DATA)

    def __post_init__(self) -> None:
        check(self.preview >= 0, "output.preview", self.preview, "it is 0 (none) or more")
        check(self.retries >= 0, "output.retries", self.retries, "it is 0 (none) or more")
        check(self.format in COMPRESSIONS, "output.format", self.format, f"it is one of {', '.join(COMPRESSIONS)}")
        known = COMPRESSIONS[self.format]
        self.compression = known[0] if self.compression == "auto" else self.compression
        allowed = f"with output.format={self.format} it is one of {', '.join(known)}"
        check(self.compression in known, "output.compression", self.compression, allowed)
        most = LEVELS.get(self.compression, 0)
        allowed = f"{self.compression} has levels 1 to {most}" if most else f"{self.compression} has no levels"
        level = self.compression_level
        check(level is None or 1 <= level <= most, "output.compression_level", level, allowed)
        self._check_publish()
        self.card = _card(self.card)

    def _check_publish(self) -> None:
        self.storage_options = self.storage_options or {}
        if not isinstance(self.storage_options, dict):
            raise ConfigError("output.storage_options is no mapping; write {key: ..., secret: ...}")
        if self.publish is None:
            return
        allowed = "it is an URL: s3://bucket/prefix, gs://bucket/prefix, file:///folder ..."
        check("://" in self.publish, "output.publish", self.publish, allowed)
        if urlsplit(self.publish).password is not None:
            raise ConfigError(
                "output.publish has a password in it; give that in output.storage_options or as the file"
                " system's environment variable, since the URL is written into logs"
            )


def _card(given: object) -> CardSettings | None:
    """`output.card` as it comes from a job, the command line or config.yaml."""
    if given is None or given is False:
        return None
    if isinstance(given, CardSettings):
        return given
    if isinstance(given, dict) and given.keys() <= {f.name for f in fields(CardSettings)}:
        return CardSettings(**given)
    check(given is True, "output.card", given, "it is false, or has the keys license and text")
    return CardSettings()
