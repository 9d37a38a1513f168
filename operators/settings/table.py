"""The settings of a second table, which an operator reads beside the rows of the job."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

from operators.settings.checks import SIZE, check, parse_size
from operators.settings.files import DataSettings
from pipeline.api.errors import ConfigError, PipelineError
from pipeline.api.keys import default_of, not_in_data

OF_PROMPTS = (
    "prompt_column",
    "prompt_template",
    "messages_column",
    "message_keys",
    "message_roles",
    "template_kwargs_column",
    "tools",
    "tools_column",
    "continue_final_message",
    "image_column",
    "image_root",
    "image_domains",
    "image_max_pixels",
    "id_column",
    "adapter_column",
)
"""Keys of `data` that say what becomes of rows; those of a table have no use for them."""
_KEY = re.compile(rf"\bdata\.(?=(?:{'|'.join(field.name for field in fields(DataSettings))})\b)")


@dataclass
class TableSettings(DataSettings):
    """A second table: files, as `data` takes them, or the directory of a run that is done.

    Args:
        memory_limit: memory that the table may take, as "1GiB" or a number of bytes. The columns of a larger one are
            read from a temporary file (TMPDIR says where); only their keys, of 24 bytes, have to be below it.
    """

    memory_limit: str = not_in_data("1GiB")

    def __post_init__(self) -> None:
        with of_table():
            super().__post_init__()
        each: dict[str, Any] = {field.name: field for field in fields(self)}
        if given := [name for name in OF_PROMPTS if getattr(self, name) != default_of(each[name])]:
            raise ConfigError(f"table.{given[0]} is about prompts, which a table has none of; leave it out")
        if self.path is None and self.dataset is None:
            raise ConfigError("table.path is not set; write table: {path: table.csv} (a file, a directory or a glob)")
        check(parse_size(self.memory_limit) is not None, "table.memory_limit", self.memory_limit, f"it is {SIZE}")

    @property
    def memory_limit_bytes(self) -> int:
        """`memory_limit` in bytes."""
        return parse_size(self.memory_limit) or 0


def in_words_of_table(sentence: str) -> str:
    """Return a sentence about `data` with the keys of a table."""
    return _KEY.sub("table.", sentence)


@contextmanager
def of_table() -> Iterator[None]:
    """Have errors of what reads `data` name the keys of a table."""
    try:
        yield
    except PipelineError as error:
        error.args = (in_words_of_table(str(error)), *error.args[1:])
        raise
