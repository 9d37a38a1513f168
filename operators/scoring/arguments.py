"""The arguments of operators that a model of this process or a server can do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from operators.scoring.columns import CHOICE, RERANK, SCORE, named, require_options
from operators.settings import DataSettings, ModelSettings, StoreSettings
from operators.settings.checks import check, check_one_of
from operators.settings.runtime import EngineSettings

NORMALIZE = ("none", "bytes", "tokens")


@dataclass(eq=False, repr=False)
class EmbedArguments:
    """See operators.embed.Embed."""

    model: ModelSettings
    runtime: EngineSettings
    text_column: str = "text"
    pooling: str | None = None
    normalize: bool = True
    dimensions: int | None = None
    truncate: bool = False
    as_: str | None = None
    where: str | None = None
    store: StoreSettings | None = None
    adapter: Any = None
    data: DataSettings | None = None

    def __post_init__(self) -> None:
        """Check the arguments, and get the operator ready to be planned."""


@dataclass(eq=False, repr=False)
class ChooseArguments:
    """See operators.choose.Choose."""

    model: ModelSettings
    runtime: EngineSettings
    options: str | Sequence[str]
    question_column: str = "prompt_text"
    normalize: str = "none"
    joint: bool = False
    as_: str | None = None
    store: StoreSettings | None = None
    where: str | None = None
    adapter: Any = None
    data: DataSettings | None = None

    def __post_init__(self) -> None:
        check_one_of("normalize", self.normalize, NORMALIZE)
        self._column = self.options if isinstance(self.options, str) else None
        self._fixed = [] if isinstance(self.options, str) else list(self.options)
        if self._column is None:
            texts = all(isinstance(option, str) and option for option in self._fixed)
            check(texts, "options", self._fixed, "each is a text that is not empty; quote yes, no and numbers")
            distinct = len(set(self._fixed)) == len(self._fixed) > 1
            check(distinct, "options", self._fixed, "there are two or more, and none twice")
        self._fields = named(CHOICE, self.as_)

    def _check_options(self, schema: pa.Schema) -> None:
        if self._column is not None:
            require_options(schema, self._column)

    def _options_of(self, data: pa.RecordBatch) -> list[list[str]]:
        """Return the options of each row; where a row has none, or one that is none, see `_why_not`."""
        return [self._fixed] * data.num_rows if self._column is None else data.column(self._column).to_pylist()

    def _why_not(self, question: str | list[int] | None, options: Sequence[str | None] | None) -> str | None:
        """Return the reason why a row cannot be answered; None if it can."""
        if not question:
            return f"column '{self.question_column}' is {'null' if question is None else 'empty'}"
        if not options:
            return f"column '{self._column}' is {'null' if options is None else 'empty'}"
        return None if all(options) else f"column '{self._column}' has an option that is null or empty"


@dataclass(eq=False, repr=False)
class RerankArguments:
    """See operators.rerank.Rerank."""

    model: ModelSettings
    runtime: EngineSettings
    query_column: str = "query"
    documents_column: str = "documents"
    top_n: int | None = None
    normalize: bool = True
    truncate: bool = False
    as_: str | None = None
    store: StoreSettings | None = None
    where: str | None = None

    def __post_init__(self) -> None:
        check(self.top_n is None or self.top_n >= 1, "top_n", self.top_n, "1 or more, or null for all documents")
        self._fields = named(RERANK, self.as_)


@dataclass(eq=False, repr=False)
class ScoreArguments:
    """See operators.score.Score."""

    model: ModelSettings
    runtime: EngineSettings
    text_column: str = "text"
    given_column: str | None = None
    joint: bool = False
    as_: str | None = None
    store: StoreSettings | None = None
    where: str | None = None
    adapter: Any = None
    data: DataSettings | None = None

    def __post_init__(self) -> None:
        self._fields = named(SCORE, self.as_)
