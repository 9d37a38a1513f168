"""The arguments of operators that a model of this process or a server can do."""

from __future__ import annotations

from dataclasses import dataclass

from operators.scoring.columns import RERANK, SCORE, named
from operators.settings import ModelSettings, StoreSettings
from operators.settings.checks import check
from operators.settings.runtime import EngineSettings


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

    def __post_init__(self) -> None:
        """Check the arguments, and get the operator ready to be planned."""


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

    def __post_init__(self) -> None:
        self._fields = named(SCORE, self.as_)
