"""The columns of Embed, Score, Choose and Rerank, made of a model's numbers or of a server's."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from operators.generation.completions import LOGPROBS
from operators.scoring.answers_rows import Answer
from pipeline.api.errors import SchemaError
from pipeline.api.records import require_column

EMBEDDING = "embedding"
SCORE = (
    LOGPROBS,
    pa.field("logprob_sum", pa.float64()),
    pa.field("token_count", pa.int32()),
    pa.field("perplexity", pa.float64()),
    pa.field("is_greedy", pa.bool_()),
)
RERANK = (
    pa.field("rerank_order", pa.list_(pa.int32())),
    pa.field("rerank_scores", pa.list_(pa.float64())),
    pa.field("rerank_documents", pa.list_(pa.string())),
    pa.field("rerank_tokens", pa.int32()),
)
CHOICE = (
    pa.field("choice", pa.string()),
    pa.field("choice_index", pa.int32()),
    pa.field("choice_logprobs", pa.list_(pa.float64())),
    pa.field("choice_probability", pa.float64()),
)
Choice = tuple[str, int, list[float], float]
"""The values of CHOICE in a row."""
Ranking = tuple[list[int], list[float], list[str], int | None]
"""The values of RERANK in a row."""


def require_options(schema: pa.Schema, name: str) -> None:
    """Raise SchemaError unless the column `name` has lists of texts."""
    if require_column(schema, name).type != pa.list_(pa.string()):
        kind = schema.field(name).type
        raise SchemaError(
            f"options: column '{name}' has type {kind}; it must be list<item: string>, which a CSV cannot hold: give"
            " JSON Lines or Parquet, or the same options for all rows (options: [yes, no])"
        )


def named(fields: Sequence[pa.Field], as_: str | None) -> list[pa.Field]:
    """Return `fields` under the names that they get with the prefix `as_`."""
    return [field.with_name(f"{as_}_{field.name}") if as_ else field for field in fields]


def score_arrays(answers: Sequence[Answer]) -> list[pa.Array]:
    """Return the columns of SCORE, from the log-probabilities of each row's tokens and whether they are greedy."""
    logprobs, is_greedy = [each for each, _ in answers], [bool(flag[0]) for _, flag in answers]
    totals = [math.fsum(each.tolist()) for each in logprobs]
    counts = [len(each) for each in logprobs]
    with np.errstate(over="ignore"):
        perplexities = [float(np.exp(np.float64(-t / n))) for t, n in zip(totals, counts, strict=True)]
    values = (logprobs, totals, counts, perplexities, is_greedy)
    return [pa.array(column, field.type) for column, field in zip(values, SCORE, strict=True)]


def chosen(options: Sequence[str], logprobs: list[float], tokens: Sequence[int], normalize: str) -> Choice:
    """Return the likeliest of `options`, the first of equal ones, and its probability among them: the softmax of what
    is compared.

    Args:
        logprobs: of each option the sum over its tokens.
        tokens: how many these are.
        normalize: see operators.choose.Choose.
    """
    sizes = {"none": [1] * len(options), "bytes": [len(text.encode()) for text in options], "tokens": tokens}
    compared = [logprob / size for logprob, size in zip(logprobs, sizes[normalize], strict=True)]
    best = max(compared)
    index = compared.index(best)
    return options[index], index, logprobs, 1 / math.fsum(math.exp(value - best) for value in compared)


def choice_arrays(choices: Sequence[Choice]) -> list[pa.Array]:
    """Return the columns of CHOICE."""
    return [pa.array(column, field.type) for column, field in zip(zip(*choices, strict=True), CHOICE, strict=True)]


def ranked(scores: Sequence[float], documents: Sequence[str], top_n: int | None, tokens: int | None) -> Ranking:
    """Return the `top_n` best documents, best first; of equal scores the earlier one comes first."""
    order = sorted(range(len(scores)), key=lambda i: -scores[i])[:top_n]
    return order, [scores[i] for i in order], [documents[i] for i in order], tokens


def rerank_arrays(rankings: Sequence[Ranking]) -> list[pa.Array]:
    """Return the columns of RERANK."""
    return [pa.array(column, field.type) for column, field in zip(zip(*rankings, strict=True), RERANK, strict=True)]


def query_and_documents(
    row: tuple[str | None, list[str | None] | None], names: tuple[str, str]
) -> tuple[str, list[str]] | str:
    """Return the query and the documents of a row, or why they cannot be read. `names`: of their columns."""
    query, documents = row
    for name, value in zip(names, row, strict=True):
        if not value:
            return f"column '{name}' is {'null' if value is None else 'empty'}"
    texts = [text for text in documents or () if text]
    if query is None or len(texts) < len(documents or ()):
        return f"column '{names[1]}' has a document that is null or empty"
    return query, texts
