"""Bodies: makes the body of each row's request, in the dialect of its server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from operators.endpoint.api.dialects import CHAT, DIALECTS
from operators.endpoint.api.formats import check_structured, constraint_of, structured_body, template_body, tools_body
from operators.endpoint.api.sampling_values import REMEDY, Unsent, is_greedy, sampling_body
from operators.generation.tools import AUTO, CHOICE, NONE
from operators.rows.json_schema import text_check
from operators.settings import DataSettings, SamplingSettings
from operators.settings.endpoint import EndpointSettings
from operators.settings.sampling import misfits, plain_value
from operators.settings.structured import parse_schema
from pipeline.api.errors import ConfigError

SEEDS = 2**31
"""Seeds of servers are below it: some take an int32."""
_OF_CALLER = ("seed", "n")
"""Keys that a column may override and that make no difference to a body: a row has its seed, and is one request."""

Prompt = str | Sequence[int] | Sequence[Mapping[str, Any]]


class Bodies:
    """Makes the bodies of a node.

    Args:
        model: of a server whose dialect is known.
        sampling: the job's values; the columns of `per_row` override them.
        data: says whether there are tools, and whether the last message is continued.
        where: the node, for messages.

    Attributes:
        columns: the columns that override sampling values of their row.

    Raises:
        ConfigError: a setting cannot be sent to such a server.
        InputError: a file of `sampling.structured` cannot be read.
    """

    def __init__(
        self,
        model: EndpointSettings,
        sampling: SamplingSettings,
        data: DataSettings | None,
        where: str,
    ) -> None:
        self._model, self._dialect, self._api = model, model.dialect, model.api
        self._sampling = sampling
        self._extra = dict(model.extra_body or {})
        self._kwargs = dict(model.template_kwargs or {})
        self._is_continued = data is not None and data.continue_final_message
        self.columns = [name for name in sampling.per_row if name not in _OF_CALLER]
        self._constraint = constraint_of(sampling.structured)
        try:
            self._check(data)
            self._plain = sampling_body(vars(sampling), self._dialect, self._api, self._extra)
        except Unsent as error:
            raise ConfigError(f"{where}: {error}") from error

    def of(
        self,
        prompt: Prompt,
        values: Mapping[str, Any],
        seed: int,
        tools: Sequence[Mapping[str, Any]] | None = None,
        schema: str | Mapping[str, Any] | bool | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> dict[str, Any] | str:
        """Return the body of a row, or the reason why there is none.

        Args:
            prompt: messages, or a text: with model.api=chat it is the user's; or the token ids of one.
            values: the row's values of `columns`; null overrides nothing.
            seed: any whole number; what is sent is it modulo 2**31.
            tools: those of the job or row, with `type` and `function`.
            schema: the row's own JSON schema (`json_schema_column`), as JSON text or parsed.
            kwargs: the row's arguments of the chat template, which come before those of the job, key by key.
        """
        overrides = {name: values[name] for name in self.columns if values.get(name) is not None}
        try:
            drawing, body = self._drawing(overrides)
            body |= {} if is_greedy(drawing) else {"seed": seed % SEEDS}
            body |= self._structured(schema, drawing, tools)
            body |= tools_body(drawing["tools"], tools or (), self._dialect, self._api)
            body |= self._template(kwargs or {})
            keys = {"model": self._model.name, **self._prompt(prompt), **body, **self._extra}
        except (Unsent, ConfigError) as error:
            return str(error)
        removed = {key for key, value in self._extra.items() if value is None}
        return {key: value for key, value in keys.items() if key not in removed}

    def _check(self, data: DataSettings | None) -> None:
        """Raise Unsent for what no row could be sent with."""
        for name in self.columns:
            if name != CHOICE and not self.names(name) and DIALECTS[name][self._dialect].of(self._api) is None:
                why = f"{self._dialect} has no key for it; {REMEDY}"
                raise Unsent(f"sampling.per_row has '{name}' and cannot be sent: {why}")
        structured, choice = self._sampling.structured, self._sampling.tools
        check_structured(structured)
        if structured.kind == "json_schema_column":
            structured_body("json_schema", {}, self._dialect, self._api)
        elif self._constraint is not None and not self.names(f"structured.{self._constraint[0]}"):
            structured_body(*self._constraint, self._dialect, self._api)
        has_tools = data is not None and data.has_tools
        if choice not in (None, NONE) and not has_tools:
            raise Unsent(f"sampling.tools={choice} needs tools; give data.tools or data.tools_column")
        if has_tools and not self.names("tools"):
            of_any = {"type": "function", "function": {"name": choice}}
            tools_body(choice, [of_any], self._dialect, self._api)
        self._template({})

    def names(self, setting: str) -> bool:
        """Return True if `model.extra_body` has the setting, or the key under which it is sent."""
        if setting in self._extra:
            return True
        return setting in DIALECTS and DIALECTS[setting][self._dialect].of(self._api) in self._extra

    def _drawing(self, overrides: Mapping[str, Any]) -> tuple[Mapping[str, Any], dict[str, Any]]:
        """Return the sampling values of a row, and their keys of the body."""
        if not overrides:
            return vars(self._sampling), dict(self._plain)
        try:
            values = vars(self._sampling) | {name: plain_value(name, value) for name, value in overrides.items()}
            broken = misfits(values)
        except (TypeError, ValueError, AttributeError) as error:
            raise Unsent(f"the columns {overrides!r} have values of a type that cannot be used") from error
        if broken:
            name, allowed = next(iter(broken.items()))
            where = f"column '{name}' has" if name in overrides else f"under its columns the row has {name}"
            raise Unsent(f"{where} {values[name]!r}; allowed: {allowed}")
        return values, sampling_body(values, self._dialect, self._api, self._extra)

    def _structured(self, schema: Any, values: Mapping[str, Any], tools: Any) -> dict[str, Any]:
        """Return the keys for the constraint of a row."""
        constraint = self._constraint
        column = self._sampling.structured.json_schema_column
        if column is not None:
            if schema is None and not self._sampling.structured.optional:
                raise Unsent(f"column '{column}' is null; it has to hold the JSON schema of the row")
            parsed = parse_schema(schema, f"column '{column}': its value") if isinstance(schema, str) else schema
            constraint = None if parsed is None else ("json_schema", parsed)
            if parsed is not None:
                text_check(parsed, f"the schema in column '{column}'")
        if constraint is None or self.names(f"structured.{constraint[0]}"):
            return {}
        if tools and values["tools"] not in (None, AUTO, NONE):
            raise Unsent(f"sampling.structured and sampling.tools={values['tools']} cannot both be; keep one")
        return structured_body(*constraint, self._dialect, self._api)

    def _template(self, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        arguments = {**self._kwargs, **kwargs}
        return template_body(arguments, self._dialect, self._api, self._extra, is_continued=self._is_continued)

    def _prompt(self, prompt: Prompt) -> dict[str, Any]:
        if self._api == CHAT:
            return {"messages": [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)}
        if not isinstance(prompt, str) and not all(isinstance(token, int) for token in prompt):
            raise Unsent("the row has messages, and model.api=completions takes a text; write model.api=chat")
        return {"prompt": prompt}
