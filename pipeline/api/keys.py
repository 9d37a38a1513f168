"""Makes the fields of settings, whose metadata say of each key, beside its default, what it is.

Who reads a key goes by these facts, so that no other module lists names of keys. Whether a run goes on under another
value is said by the function that makes the field; the fingerprint and content keys read it (`deciding_fields`). The
others:

    allowed, holds, secret  the values that can work, in words and as a function; whether messages leave the value out
    reads                   of `data`: how files are read; under `append` it may change, since columns are compared
    told                    values that the fingerprint has as others, by which runs of before go on: {new: old}
    local, prompts          of `model`: a server as the model refuses it; about texts, not about what is loaded
    loads                   of `model`: False: settings that differ in it alone are equal, and their model is one, as it
                            was first loaded
    blocks                  of `sampling`: True, or why it must be unset with decode=block_diffusion
    off, step               of `sampling`: the value at which a step does nothing, and its name, if it is another
    beside                  of `sampling`: the keys of which one has to act for this one to have an effect
    ends, row               of `sampling`: it says where a text ends; False: no column can override it
    sent, unsent            a server is sent it also where it is not given; why a server cannot be told
    kind                    of `sampling.structured`: a constraint on texts, of which one may be given
    open                    of `runtime`: the value that leaves it to a calibration
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import MISSING, Field, field, fields
from typing import Any

from pipeline.api.errors import ConfigError
from pipeline.api.removed import removed

Rule = tuple[str, Callable[[Any], bool]]
"""The values that can work, in words and as a function."""


def in_data(default: Any, *rule: Any, **facts: Any) -> Any:
    """Return the field of a key that can change a byte of data/: a run does not go on under another value."""
    return key(default, *rule, fingerprint=True, **facts)


def when_given(default: Any, *rule: Any, **facts: Any) -> Any:
    """Return the field of a key that counts as `in_data` does where its value is not the default. A key that is new in
    a version is one, so that runs of before go on."""
    return key(default, *rule, fingerprint="given", **facts)


def not_in_data(default: Any, *rule: Any, **facts: Any) -> Any:
    """Return the field of a key that may change between two attempts of a run: it cannot change a byte of data/."""
    return key(default, *rule, fingerprint=False, **facts)


def key(default: Any, allowed: str = "", holds: Callable[[Any], bool] | None = None, **facts: Any) -> Any:
    """Return the field of a key. `fingerprint`: whether it can change a byte of data/, or a function that says so of
    the settings. `default`: its value; a list is copied, and a function called, for each object."""
    metadata = facts if holds is None else {"allowed": allowed, "holds": holds, **facts}
    made = default.copy if isinstance(default, list) else default if callable(default) else None
    given: dict[str, Any] = {"default": default} if made is None else {"default_factory": made}
    return field(metadata=metadata, compare=facts.get("loads", True), **given)


def deciding_fields(settings: Any) -> Iterator[tuple[Field[Any], Any]]:
    """Yield the fields of a config group that a result depends on, and their values."""
    for each in fields(settings):
        value, counts = getattr(settings, each.name), each.metadata.get("fingerprint", True)
        counts = counts(settings) if callable(counts) else counts
        if counts and not (counts == "given" and value == default_of(each)):
            yield each, each.metadata["told"].get(value, value) if "told" in each.metadata else value


def default_of(each: Field[Any]) -> Any:
    """Return the value of a key that is not given."""
    return each.default if each.default_factory is MISSING else each.default_factory()


def one_of(values: Collection[Any], *others: object) -> Rule:
    """Return the rule that a value is among `values`, which it names, or `others`."""
    return f"it is one of {', '.join(map(str, values))}", lambda value: value in values or value in others


def at_least(least: float, allowed: str) -> Rule:
    """Return the rule that a value is a number from `least`, or null where its type has it."""
    return allowed, lambda value: value is None or value >= least


def above_0(allowed: str) -> Rule:
    """Return the rule that a value is a number above 0, or null where its type has it."""
    return allowed, lambda value: value is None or value > 0


def maps(what: str, fits: Callable[[tuple[Any, Any]], bool] = lambda pair: True) -> Rule:
    """Return the rule that a value is a mapping whose pairs fit, or null."""
    return f"it maps {what}, or is null", lambda v: v is None or (isinstance(v, dict) and all(map(fits, v.items())))


def read_by(read: Callable[[str], object], allowed: str) -> Rule:
    """Return the rule that `read` can read a text, or null. It raises ValueError for one that it cannot."""

    def holds(value: str | None) -> bool:
        try:
            return value is None or read(value) is not None
        except ValueError:
            return False

    return allowed, holds


def check_values(settings: Any, group: str = "") -> None:
    """Check each key of `settings` by its own rule. Raises ConfigError with the key as users type it, below `group`."""
    for each in fields(settings):
        if "holds" in each.metadata:
            facts, value = each.metadata, getattr(settings, each.name)
            shown = "..." if facts.get("secret") else value
            check(facts["holds"](value), f"{group}.{each.name}".lstrip("."), shown, facts["allowed"])


def check(holds: bool, key: str, value: object, allowed: str) -> None:
    """Raise ConfigError with `key`, its `value` and what is `allowed`, unless `holds`."""
    if not holds:
        if gone := removed(f"{key}={value}"):
            raise ConfigError(gone)
        quotes = "; yes, no, on, off, true and false are texts only in quotes" if _has_boolean(value) else ""
        raise ConfigError(f"{key}={value!r} cannot work: {allowed}{quotes}")


def _has_boolean(value: object) -> bool:
    """Return True if a list or mapping has a boolean: YAML reads words like `no` as one."""
    inside = [*value, *value.values()] if isinstance(value, Mapping) else value if isinstance(value, list) else []
    return any(isinstance(v, bool) for v in inside)
