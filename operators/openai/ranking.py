"""ParseRanking and RespondRanking: /v1/rerank and /v1/score, as vLLM, Jina and others answer them."""

from __future__ import annotations

import itertools
from typing import Any

import pyarrow as pa

from operators.endpoint.api.checks import BadValue, flag, some_text, whole
from operators.endpoint.api.usage import usage_body
from operators.endpoint.api.vectors import result_entry, score_entry
from operators.openai.bodies import digest_of
from operators.openai.parse_batch import ParseBatch
from operators.openai.requests import ALL, FLAG, INT, TEXT, Columns, Parameter, Parameters, fields_of
from operators.openai.respond import Respond
from operators.openai.values import Code, Fault
from pipeline.api.records import LINEAGE, ROW

RERANK, SCORE = "/v1/rerank", "/v1/score"


def _documents(where: str, value: Any) -> list[str]:
    """Read texts, or objects with a `text`."""
    items = value if isinstance(value, list) else []
    texts: list[Any] = [item.get("text") if isinstance(item, dict) else item for item in items]
    if not texts or not all(isinstance(text, str) and text for text in texts):
        raise BadValue(where, value, "a list of texts of at least one character, or of objects {text: ...}")
    return texts


_TEXTS = Parameter(lambda where, value: _documents(where, [value] if isinstance(value, str) else value))
RANKING: Parameters = {
    RERANK: {
        **ALL,
        "query": Parameter(some_text, TEXT),
        "documents": Parameter(_documents, pa.list_(TEXT)),
        "top_n": Parameter(whole(1), INT),
        "return_documents": Parameter(flag, FLAG),
    },
    SCORE: {**ALL, "text_1": _TEXTS, "text_2": _TEXTS},
}


class ParseRanking(ParseBatch):
    """Reads a request from each line, as ParseBatch does, with the columns of Rerank.

    A request for scores of one text with several is one row, one for several pairs a row for each.
    """

    parameters = RANKING
    fields = fields_of(*RANKING.values())

    def _asked(self, columns: Columns, texts: list[Any]) -> list[Columns]:
        if "query" in columns:
            return [{}]
        first, second = columns.pop("text_1"), columns.pop("text_2")
        if len(first) == 1:
            return [{"query": first[0], "documents": second}]
        if len(first) != len(second):
            why = f"text_1 has {len(first)} texts and text_2 has {len(second)}; give one text_1, or as many of both"
            raise Fault(Code.INVALID_VALUE, why)
        return [{"query": query, "documents": [document]} for query, document in zip(first, second, strict=True)]


class RespondRanking(Respond):
    """Makes the response of each request of ParseRanking from what Rerank says, as Respond does."""

    reads = {field.name: field.type for field in (*ParseRanking.fields, LINEAGE, ROW)} | {
        "rerank_order": pa.list_(pa.int32()),
        "rerank_scores": pa.list_(pa.float64()),
        "rerank_tokens": pa.int32(),
    }

    def _body(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        first, digest = rows[0], digest_of(rows[0][ROW.name], rows[0]["custom_id"])
        about = {"model": first["model"], "usage": usage_body(sum(row["rerank_tokens"] for row in rows))}
        ranked = [list(zip(row["rerank_order"], row["rerank_scores"], strict=True)) for row in rows]
        if first["url"] == RERANK:
            documents = first["documents"] if first["return_documents"] is not False else [None] * len(ranked[0])
            results = [result_entry(index, score, documents[index]) for index, score in ranked[0][: first["top_n"]]]
            return {"id": f"rerank-{digest}", **about, "results": results}
        scores = [score for row in ranked for _, score in sorted(row)]
        data = list(itertools.starmap(score_entry, enumerate(scores)))
        return {"id": f"score-{digest}", "object": "list", "created": 0, "model": first["model"], "data": data} | about
