"""The fields of a job's config groups that the engine reads. Their classes belong to the operators, and have more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pipeline.api.errors import ConfigError


@dataclass
class EngineFields:
    """Of `runtime`; the defaults are those of a job without it: slots are not known, threads take all cores,
    there is no limit and no timeout."""

    slots: int = 0
    threads: int | None = None
    deterministic: bool = True
    memory_limit_bytes: int | None = None
    stall_timeout_s: float | None = None
    long_rows: str | None = None


class ModelFields(Protocol):
    """Of `model`, and of a model that makes drafts."""

    path: str | None
    repo: str | None
    file: str | None
    revision: str | None
    converts_to: str | None
    adapters: Mapping[str, Any] | None


class DecodeFields(Protocol):
    """Of `decode`."""

    draft_model: ModelFields | None


class DataFields(Protocol):
    """Of `data`. `free_form`: columns whose objects differ from row to row."""

    prompt_template: str | None
    id_column: str | None
    free_form: Sequence[str]


class OutputFields(Protocol):
    """Of `output`. `card_settings` returns license and text of the dataset card, None for no card."""

    format: str
    publish: str | None
    storage_options: Mapping[str, Any]
    retries: int

    def card_settings(self) -> Any: ...


FIELDS: Mapping[str, type] = {
    **{"runtime": EngineFields, "model": ModelFields, "decode": DecodeFields},
    **{"data": DataFields, "output": OutputFields},
}


def check_fields(group: str, settings: object) -> None:
    """Raise ConfigError if the settings of a group lack what the engine reads of them. None is a job without it."""
    fields = FIELDS[group]
    names = {**fields.__annotations__, **vars(fields)}
    missing = [name for name in names if not name.startswith("_") and not hasattr(settings, name)]
    if missing and settings is not None:
        lacks = f"{type(settings).__name__} has no {', '.join(missing)}"
        raise ConfigError(f"{group}: its class {lacks}, and must have all of pipeline.api.groups.{fields.__name__}")
