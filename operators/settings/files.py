"""The config groups `data`, `output` and `store`: the files that a run reads and leaves."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar
from urllib.parse import urlsplit

from operators.formats.reader import ReadKeys
from operators.formats.registry import WRITTEN, FormatKeys
from operators.settings.checks import check, check_one_of
from pipeline.api.errors import ConfigError
from pipeline.api.keys import at_least, check_values, in_data, maps, not_in_data, one_of, when_given

FINISH_REASONS = ("stop", "stop_string", "length")
LEVELS = {"zstd": 22, "gzip": 9}
"""The highest level of the compressions that have levels."""


NO_MESSAGES = "data.messages_column is not set; name the column with the messages"
_NONE_OR_MORE = at_least(0, "it is 0 (none) or more")
_TOOLS = "it is a list of tools, the path of a JSON file with one, or null"
_TYPES = "it maps names of columns to types, or is text or null"
_TO_NAMES = maps("names in the files to others", lambda pair: all(isinstance(text, str) for text in pair))
_TO_TYPES = maps("names of columns to types", lambda pair: all(isinstance(text, str) for text in pair))


def _are_paths(value: Any) -> bool:
    paths = value if isinstance(value, list) else [value]
    return value is None or (bool(paths) and all(isinstance(path, str) and path for path in paths))


def _are_hosts(values: Any) -> bool:
    return all(isinstance(host, str) and re.fullmatch(r"[\w.-]+(:\d+)?", host) for host in values)


@dataclass
class DataSettings(ReadKeys):
    """The source of the prompts (`data`). docs/data.md has the formats, URLs and datasets at length.

    Args:
        path: a file, a directory, a glob, a URL of one of these, or a list of them.
        storage_options: what fsspec takes for URLs: endpoint, keys. Credentials in it are never written down.
        dataset: instead of a path, a dataset on the Hugging Face Hub (owner/name) or a folder laid out like one.
        config, split, revision: of the dataset.
        format: the name of a format (docs/data.md has all; lines is each line of a text file as the column `text`);
            auto goes by the file's extension.
        prompt_column: column with the text of the prompt.
        prompt_template: a Jinja template over the columns that makes the prompt, instead of a prompt column: the
            user's message, inside the model's chat template.
        messages_column: column with a list of {role, content}, instead of a prompt column.
        message_keys: keys of these messages in the files to role, content ...: {from: role, value: content} for
            ShareGPT, whose roles human and gpt are user and assistant then.
        message_roles: roles in the files to those of the model's chat template: {bot: assistant}.
        template_kwargs_column: column with the arguments of the chat template, as a struct, a map or JSON; they come
            before `model.template_kwargs`, key by key.
        adapter_column: column with the name of each row's adapter, of `model.adapters`, or a list of names; null and
            base are the model as it is. For all nodes that have no `adapter` of their own.
        tools: the tools that the chat template tells the model about: a list of {type: function, function: {name,
            description, parameters}}, or the path of a JSON file with such a list.
        tools_column: column with the tools of each row, as a list of structs or JSON, instead of `tools`.
        continue_final_message: leave the last message open, where it is the assistant's, for the model to continue.
        image_column: column with the images of each row: a path, the bytes of a file, a struct {bytes, path} as HF's
            Image has it, a `data:` URL, a URL, or a list of any of these; null, or empty, is a row without images. See
            docs/images.md.
        image_root: folder below which paths of images may lead, besides the folder of `path`.
        image_domains: hosts from which images are fetched whose place is an http(s) URL: [images.example.com].
        image_max_pixels: width times height of the largest image that is decoded; a larger one costs its row.
        id_column: column whose value, rather than the row's position, seeds the row's random numbers. A null leaves it
            to the position.
        schema: column name to type (int64, double, string, bool, list<string> ...), instead of reading it off the data;
            only these columns are read.
        types: column name to type for single columns, the others are read off the data; or text: all columns of a CSV
            file are text.
        rename: column of the files to the name that it gets; `row` and `lineage` need another one.
        partitions: folders KEY=VALUE (Hive partitions) below a directory or in a glob are read, and are columns of
            their rows.
        limit: rows to read at most.
        empty: what an input without rows or without files is: error, or ok, a run of no rows that is done.
    """

    # What is Any is checked below: OmegaConf 2.3 can declare no unions, and no mappings that the command line can set.
    path: Any = in_data(None, "it is a path, a URL, or a list of these", _are_paths)
    storage_options: Any = not_in_data(None, *maps("names of options to values"), secret=True)
    dataset: str | None = not_in_data(None)
    config: str | None = not_in_data(None)
    split: str = not_in_data("train")
    revision: str | None = not_in_data(None)
    format: str = in_data("auto", reads=True)
    prompt_column: str = "prompt"
    prompt_template: str | None = None
    messages_column: str | None = None
    message_keys: Any = when_given(None, *_TO_NAMES)
    message_roles: Any = when_given(None, *_TO_NAMES)
    template_kwargs_column: str | None = when_given(None)
    adapter_column: str | None = when_given(None)
    tools: Any = when_given(None, _TOOLS, lambda v: isinstance(v, str | list | None))
    tools_column: str | None = when_given(None)
    continue_final_message: bool = when_given(False)
    image_column: str | None = when_given(None)
    image_root: str | None = when_given(None)
    image_domains: list[str] = when_given([], "each is the name of a host, as images.example.com", _are_hosts)
    image_max_pixels: int = when_given(64_000_000, *at_least(1, "it is 1 or more"))
    id_column: str | None = None
    schema: Any = in_data(None, *_TO_TYPES, reads=True)
    types: Any = when_given(None, _TYPES, lambda v: v == "text" or _TO_TYPES[1](v), reads=True)
    rename: Any = in_data(None, "it maps names in the files to others, or is null", _TO_TYPES[1], reads=True)
    partitions: bool = when_given(False, reads=True)
    limit: int | None = in_data(None, *at_least(1, "it is 1 or more, or null for all rows"), reads=True)
    empty: str = not_in_data("error", *one_of(("error", "ok")))

    @property
    def has_tools(self) -> bool:
        """True if the job or its rows have tools."""
        return self.tools is not None or self.tools_column is not None

    @property
    def free_form(self) -> list[str]:
        """The columns whose objects differ from row to row by nature."""
        columns = (self.messages_column, self.tools_column, self.template_kwargs_column)
        return [name for name in columns if name is not None]

    def __post_init__(self) -> None:
        super().__post_init__()
        both = self.prompt_template is not None and self.messages_column is not None
        check(not both, "data.prompt_template", self.prompt_template, "data.messages_column is set, too; keep one")
        for key in ("message_keys", "message_roles"):
            names = getattr(self, key)
            check(not names or self.messages_column is not None, f"data.{key}", names, NO_MESSAGES)
        both = self.tools is not None and self.tools_column is not None
        check(not both, "data.tools_column", self.tools_column, "data.tools is set, too; keep one")
        both = self.types is not None and self.schema is not None
        check(not both, "data.types", self.types, "data.schema is set, too; keep one")


@dataclass
class CardSettings:
    """The part of the dataset card that the run cannot know (`output.card`).

    Args:
        license: as the Hub spells it: apache-2.0, cc-by-4.0, mit ...
        text: your own words about the data, Markdown.
    """

    license: str | None = None
    text: str | None = None


@dataclass
class OutputSettings(FormatKeys):
    """The contents of the result files, and their copies (`output`).

    Args:
        format: parquet, jsonl, arrow (Arrow IPC files), csv, or xlsx (Parquet, and of it results.xlsx at the end).
        compression: what the format has (operators/formats); auto is the first of these.
        compression_level: of zstd (1 to 22) and gzip (1 to 9); null leaves it to the library.
        split_by: a column of texts (train, test ...): the rows of each of its values have files of their own, which
            `datasets` loads as a split of that name; null: all rows of a chunk are one file.
        prompt_text: keep the exact text that the model was given.
        completion_ids: keep the token ids of the completion.
        completion_text: answer, or raw: `completion` has the reasoning and its tags too.
        preview: rows to print at the end of a run.
        preview_columns: the columns of these rows to print; empty prints all.
        publish: an fsspec URL (s3://bucket/prefix) to which finished files are copied; null keeps them here only.
        storage_options: what its file system is opened with. Kept out of everything that is written.
        retries: how often an upload that failed is tried again, after 1, 2, 4 ... seconds.
        card: of the dataset, README.md beside data/: true writes it, false does not; keys of CardSettings write it with
            what they say. Without any of these it is written if `publish` or `split_by` is given.
    """

    options: ClassVar[Mapping[str, Mapping[str, Any]]] = {name: {"format": name} for name in WRITTEN}
    """Options of the config group, `output=csv` and so on, with their values."""

    format: str = "parquet"
    compression: str = "auto"
    compression_level: int | None = None
    split_by: str | None = when_given(None)
    prompt_text: bool = False
    completion_ids: bool = False
    completion_text: str = in_data("answer", *one_of(("answer", "raw")))
    preview: int = not_in_data(0, *_NONE_OR_MORE)
    preview_columns: list[str] = not_in_data([])
    publish: str | None = not_in_data(None)
    storage_options: Any = not_in_data(None)  # a mapping; see DataSettings
    retries: int = not_in_data(5, *_NONE_OR_MORE)
    # A plain mapping: in a dataclass OmegaConf would refuse the `card: true` of a job file.
    card: Any = not_in_data(lambda: asdict(CardSettings()))

    def __post_init__(self) -> None:
        check_values(self, "output")
        check_one_of("output.format", self.format, WRITTEN)
        compressions = WRITTEN[self.format].compressions
        self.compression = compressions[0] if self.compression == "auto" else self.compression
        allowed = f"with output.format={self.format} it is one of {', '.join(compressions)}"
        check(self.compression in compressions, "output.compression", self.compression, allowed)
        most = LEVELS.get(self.compression, 0)
        allowed = f"{self.compression} has levels 1 to {most}" if most else f"{self.compression} has no levels"
        level = self.compression_level
        check(level is None or 1 <= level <= most, "output.compression_level", level, allowed)
        for each in fields(self):
            given, owners = getattr(self, each.name), [n for n, form in WRITTEN.items() if each.name in form.keys]
            usual = self.format in owners or not owners or given == each.default
            check(usual, f"output.{each.name}", given, f"it is for output={' and '.join(owners)}")
        several = self.split_by is None or WRITTEN[self.format].final is None
        check(several, "output.split_by", self.split_by, f"output={self.format} is one file; write output=csv")
        self.card = _card(self.card)
        self.storage_options = self.storage_options or {}
        if not isinstance(self.storage_options, dict):
            raise ConfigError("output.storage_options is no mapping; write {key: ..., secret: ...}")
        url = self.publish
        allowed = "it is a URL: s3://bucket/prefix, gs://bucket/prefix, file:///folder ..."
        check(url is None or "://" in url, "output.publish", url, allowed)
        if url is not None and urlsplit(url).password is not None:
            raise ConfigError(
                "output.publish has a password in it; give that in output.storage_options or as the file"
                " system's environment variable, since the URL is written into logs"
            )

    def card_settings(self) -> CardSettings | None:
        """Return the settings of the card to write; None if there is to be none."""
        card: CardSettings | None = CardSettings() if self.card is True else self.card
        is_asked_for = self.card is True or card != CardSettings()
        return card if is_asked_for or self.publish is not None or self.split_by is not None else None


def _card(card: object) -> CardSettings | bool | None:
    """Read `output.card` from a job, the command line or config.yaml: true, keys, or None for false."""
    if isinstance(card, CardSettings) or card is True:
        return card
    if isinstance(card, dict) and card.keys() <= {f.name for f in fields(CardSettings)}:
        return CardSettings(**card)
    check(card is None or card is False, "output.card", card, "it is true, false, or has the keys license and text")
    return None


@dataclass
class RetrySettings:
    """The completions of other runs to generate again though the store has them (`store.retry`).

    Args:
        finish_reason: those that ended so: stop, stop_string, length.
    """

    finish_reason: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        unknown = [reason for reason in self.finish_reason if reason not in FINISH_REASONS]
        check(not unknown, "store.retry.finish_reason", unknown, f"each is one of {', '.join(FINISH_REASONS)}")


@dataclass
class StoreSettings:
    """The store of finished completions and scores, in which a restart or a later run finds them (`store`).

    Args:
        enabled: journal completions at all.
        path: the SQLite file; null: completions.sqlite in the output directory. May be shared between runs.
        sync: `process` survives the death of the process, `power` also that of the machine.
        images_mb: MiB of files in the user's cache for what was computed for images, for later runs that ask about the
            same; those not used for longest go first. 0: none.
        retry: what is made again though it is there.
    """

    enabled: bool = not_in_data(True)
    path: str | None = not_in_data(None)
    sync: str = not_in_data("process", *one_of(("process", "power")))
    images_mb: int = not_in_data(2048, *_NONE_OR_MORE)
    retry: RetrySettings = field(default_factory=RetrySettings)

    def __post_init__(self) -> None:
        check_values(self, "store")
