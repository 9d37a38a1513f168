"""The rows of a scenario: prompts and lengths, made once from the data and kept in a folder.

The folder holds `prompts.jsonl` (what a job reads), `rendered.parquet` (the same prompts as text and as tokens, for
those that take no dataset) and `facts.json`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from operators.engine.backend.interface import Model, close_model, loader
from operators.prompts.template import Template
from operators.rows.content import content_id
from operators.settings import DataSettings, ModelSettings
from operators.sources.files import find_files
from operators.sources.read_prompts import ReadPrompts
from pipeline.api.errors import SchemaError
from pipeline.api.list_inbox import Given
from pipeline.api.records import Batch

CHATML = "<|im_start|>user\n{{ prompt }}<|im_end|>\n<|im_start|>assistant{{ '\\n' }}"  # Jinja drops a last line end
PROMPTS, RENDERED, FACTS, TEMPLATE = "prompts.jsonl", "rendered.parquet", "facts.json", "chatml.jinja"
RENDERED_SCHEMA = pa.schema(
    {"prompt_text": pa.string(), "prompt_ids": pa.list_(pa.int32()), "max_tokens": pa.int32()}.items()
)
_STOP_EVERY = 50
"""Tokens after which a random model's row should meet its stop string, on average."""


@dataclass(frozen=True)
class Recipe:
    """How the rows of a scenario are made of the data.

    Args:
        low, high: completion tokens of a row are drawn from this range; None: those of the reference answer, at most
            sampling.max_tokens.
        words: words of the prompt that are kept; None keeps all.
        few_shot: put worked examples before each question.
        stops: choose a stop string from the vocabulary.
    """

    low: int | None = None
    high: int | None = None
    words: int | None = None
    few_shot: bool = False
    stops: bool = False


@dataclass
class Request:
    """What to make.

    Args:
        recipe: how the rows are made of the data.
        rows: how many prompts.
        copies: rows with the same text for each prompt.
        data: where the prompts are.
        answer_column: where the reference answers are, None where there are none.
        cap: tokens of a completion at most.
        shots: worked examples before a question, where the recipe asks for them.
        stop: stop strings of a recipe with stops; empty: one is chosen.
        model: gives the tokenizer.
    """

    recipe: Recipe
    rows: int
    copies: int
    data: DataSettings
    answer_column: str | None
    cap: int
    shots: int
    stop: list[str]
    model: ModelSettings

    def key(self) -> str:
        """Names the folder: the same rows, the same name, whatever the files are called."""
        values: dict[str, Any] = asdict(self)
        del values["data"]["path"], values["data"]["storage_options"]
        values["data"]["content"] = [file.content_id() for file in find_files(self.data)]
        values["model"]["content"] = _identity(values["model"].pop("path"))
        return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Facts:
    """Numbers of a workload.

    Args:
        rows: all of them, copies too.
        prompt_tokens, new_tokens: sums; `new_tokens` if every row reaches its length.
        longest: prompt and completion tokens of the longest row.
        mean_depth: tokens in a row's KV cache, on average over all decode steps.
        n_ctx_train: tokens that the model was trained for.
        stop: strings that end rows.
        has_mask: whether the model's vocabulary names a mask token.
    """

    rows: int
    prompt_tokens: int
    new_tokens: int
    longest: int
    mean_depth: float
    n_ctx_train: int
    stop: list[str]
    has_mask: bool = False


@dataclass(frozen=True)
class Workload:
    """The rows of a scenario, in a folder."""

    folder: Path

    @property
    def facts(self) -> Facts:
        """The numbers of the rows."""
        return Facts(**json.loads((self.folder / FACTS).read_text(encoding="utf-8")))

    def rendered(self) -> pa.Table:
        """The rows under RENDERED_SCHEMA."""
        return pq.read_table(self.folder / RENDERED, schema=RENDERED_SCHEMA)


def make(request: Request, folder: Path) -> Workload:
    """Make the rows of `request` in `folder`, which appears whole.

    Raises:
        SchemaError: the data has no column of that name.
        InputError: data or model cannot be read.
    """
    prompts, answers = _read(request)
    texts = _prompts(request, prompts, answers)
    rendered = [Template(CHATML, "the benchmark's template", strict=True).render({"prompt": text}) for text in texts]
    model = loader(request.model)(request.model)  # for its tokenizer
    lengths = _lengths(request, answers, model)
    ids = [model.tokenize([text.encode()])[0] for text in rendered]
    stop = (request.stop or [_stop_string(model)]) if request.recipe.stops else []
    n_ctx_train, has_mask = model.n_ctx_train, model.mask_id is not None
    close_model(model)
    order = np.repeat(np.arange(request.rows), request.copies)
    facts = facts_of([len(ids[i]) for i in order], lengths[order].tolist(), n_ctx_train, stop, has_mask)
    columns = [[rendered[i] for i in order], [ids[i] for i in order], lengths[order]]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, RENDERED_SCHEMA, strict=True)]
    unfinished = folder.with_name(folder.name + ".tmp")
    unfinished.mkdir(parents=True, exist_ok=True)
    rows = [{"prompt": texts[i], "max_tokens": int(lengths[i])} for i in order]
    (unfinished / PROMPTS).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (unfinished / TEMPLATE).write_text(CHATML, encoding="utf-8")
    (unfinished / FACTS).write_text(json.dumps(asdict(facts)), encoding="utf-8")
    pq.write_table(pa.table(arrays, schema=RENDERED_SCHEMA), unfinished / RENDERED)
    unfinished.rename(folder)
    return Workload(folder)


def facts_of(
    prompts: Sequence[int], lengths: Sequence[int], n_ctx_train: int, stop: list[str], has_mask: bool = False
) -> Facts:
    """The numbers of rows with these prompt tokens and completion tokens."""
    # Step k of a row, k = 0, 1 ..., sees its prompt and the k tokens before.
    depths = sum(n * p + n * (n - 1) / 2 for p, n in zip(prompts, lengths, strict=True))
    return Facts(
        rows=len(prompts),
        prompt_tokens=sum(prompts),
        new_tokens=sum(lengths),
        longest=max(p + n for p, n in zip(prompts, lengths, strict=True)),
        mean_depth=depths / sum(lengths),
        n_ctx_train=n_ctx_train,
        stop=stop,
        has_mask=has_mask,
    )


def _read(request: Request) -> tuple[list[str], list[str | None]]:
    source = ReadPrompts(request.data, chunk_rows=1 << 30)
    names = source.plan().names
    if request.data.prompt_column not in names:
        raise SchemaError(
            f"there is no column '{request.data.prompt_column}'; the columns are {', '.join(names)}:"
            " name the one that holds the prompt with data.prompt_column="
        )
    batches = [item.data for item in source.run(Given()) if isinstance(item, Batch)]
    prompts = [p for batch in batches for p in batch.column(request.data.prompt_column).to_pylist()]
    column = request.answer_column
    answers = (
        [a for batch in batches for a in batch.column(column).to_pylist()] if column in names else [None] * len(prompts)
    )
    whole = [(p, a) for p, a in zip(prompts, answers, strict=True) if p]
    if not whole:
        raise SchemaError(f"column '{request.data.prompt_column}' of {request.data.path} holds no prompt")
    return [p for p, _ in whole], [a for _, a in whole]


def _prompts(request: Request, prompts: list[str], answers: list[str | None]) -> list[str]:
    """As many prompts as are asked for. Data that is too short is gone through again; no two texts are the same."""
    recipe = request.recipe
    shots = request.shots if recipe.few_shot else 0
    # The examples are the last rows, so that the questions are those of the other scenarios.
    examples = "".join(
        f"Question: {p}\nAnswer: {a or ''}\n\n"
        for p, a in list(zip(prompts, answers, strict=True))[len(prompts) - shots :]
    )
    texts: list[str] = []
    for i in range(request.rows):
        again, at = divmod(i, len(prompts))
        text = prompts[at] if recipe.words is None else f"{i}: " + " ".join(prompts[at].split()[: recipe.words])
        text = f"{text} ({again + 1})" if again else text
        texts.append(f"{examples}Question: {text}\nAnswer:" if shots else text)
    return texts


def _lengths(request: Request, answers: list[str | None], model: Model) -> np.ndarray[Any, np.dtype[np.int32]]:
    random = np.random.default_rng(0)
    if request.recipe.stops:
        return np.full(request.rows, request.cap, np.int32)
    low, high = request.recipe.low, request.recipe.high
    if low is not None and high is not None:
        return random.integers(low, high + 1, request.rows).astype(np.int32)
    drawn = random.integers(min(10, request.cap), request.cap + 1, len(answers))
    found = [
        int(n) if a is None else min(max(len(model.tokenize([str(a).encode()])[0]), 1), request.cap)
        for a, n in zip(answers, drawn, strict=True)
    ]
    return np.array([found[i % len(found)] for i in range(request.rows)], np.int32)


def _stop_string(model: Model) -> str:
    """The printable ASCII character that ends a row of evenly drawn tokens after about _STOP_EVERY of them."""
    counts = np.zeros(128, np.int64)
    for piece in model.pieces():
        for byte in set(piece):
            if byte < 128:
                counts[byte] += 1
    printable = range(33, 127)
    return chr(min(printable, key=lambda c: abs(int(counts[c]) - model.n_vocab / _STOP_EVERY)))


def _identity(path: str | None) -> str | None:
    """The content of a file; of a folder or a glob its name."""
    at = Path(path).expanduser() if path else None
    return content_id(at) if at is not None and at.is_file() else path
