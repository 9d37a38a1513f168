"""Frequent mistakes on the command line and in job files, with what to write instead."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from pipeline.api.errors import ConfigError
from pipeline.config.keys import known_keys

_TEXTS = ("stop", "bad_words", "system", "template")
_IN_TEMPLATE = re.compile(r"\{[{%].*?[}%]\}", re.DOTALL)
"""Parts of a template in which `\\n` is a line break."""


def refuse_dashes(arguments: Sequence[str]) -> None:
    """Refuse a setting written like an option: `--seed=3`, `--dry-run`.

    Raises:
        ConfigError: there is one; the message has the correct form.
    """
    for argument in arguments:
        option = re.fullmatch(r"-{1,2}([A-Za-z][\w.-]*)(?:=(.*))?", argument, re.DOTALL)
        key = option[1].replace("-", "_") if option else ""
        if option and len(key) > 1 and key in known_keys():
            value = "VALUE" if option[2] is None else option[2]
            raise ConfigError(f"{argument}: settings have no dashes; write {key}={value}")


def notes(settings: object, key: str = "") -> Iterator[str]:
    """Yield a note for each prompt text or stop string with a literal `\\n`, which may be meant as a line break."""
    if isinstance(settings, Mapping):
        for name, inside in settings.items():
            yield from notes(inside, f"{key}.{name}" if key else str(name))
        return
    texts = settings if isinstance(settings, list) else [settings]
    written = [_IN_TEMPLATE.sub("", text) for text in texts if isinstance(text, str)]
    if key.rpartition(".")[2] in _TEXTS and any("\\n" in text for text in written):
        yield (
            f"note: {key}: \\n is a backslash and an n here; for a line break write $'{key}=...\\n...' (in bash and"
            ' zsh), or in a job file "...\\n..." in double quotes'
        )
