"""The config group `data`: the source of the prompts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from operators.settings.checks import NOT_IN_DATA, check


@dataclass
class DataSettings:
    """The source of the prompts (`data`). docs/data.md has the formats, URLs and datasets at length.

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
        options = isinstance(self.storage_options, dict | None)  # its value may be a secret: messages leave it out
        check(options, "data.storage_options", "...", "it maps names of options to values, or is null")
        check(self.limit is None or self.limit >= 1, "data.limit", self.limit, "it is 1 or more, or null for all rows")


def _texts(mapping: Any) -> bool:
    """Return True for null, and for a mapping of strings to strings."""
    return mapping is None or (
        isinstance(mapping, dict) and all(isinstance(text, str) for pair in mapping.items() for text in pair)
    )
