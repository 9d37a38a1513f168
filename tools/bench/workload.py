"""The rows of a scenario: prompts and lengths, made from the data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from operators.engine.backend.interface import Model
from operators.engine.backend.loading import close_model, loader
from operators.images.columns import IMAGE_MARK
from operators.prompts.template import Template
from operators.settings import DataSettings, ModelSettings
from operators.sources.read_prompts import ReadPrompts
from pipeline.api.errors import SchemaError
from pipeline.api.protocols import ListInbox
from pipeline.api.records import Batch
from tools.bench.images import image_cells, make_images
from tools.bench.settings import BenchSettings

CHATML = "<|im_start|>user\n{{ prompt }}<|im_end|>\n<|im_start|>assistant{{ '\\n' }}"  # Jinja drops a last line end
CHATML_WITH_IMAGE = CHATML.replace("{{", "{{ image }}{{", 1)
ROWS_SCHEMA = pa.schema(
    {
        **{"prompt": pa.string(), "prompt_text": pa.string(), "prompt_ids": pa.list_(pa.int32())},
        **{"max_tokens": pa.int32(), "image": pa.int32()},
    }
)
CELL = -1
"""Stands in `prompt_ids` for a cell of an image."""
_STOP_EVERY = 50
"""Average number of tokens before a random model's row reaches its stop string."""


@dataclass(frozen=True)
class Recipe:
    """The rule for making the rows of a scenario from the data.

    Args:
        low, high: range of a row's completion tokens; None: as many as the reference answer, at most max_tokens.
        tail: tokens of the last two rows, which makes the tail of a job long where that is not known beforehand.
        words: number of the prompt's words to keep; None keeps all.
        few_shot: put worked examples before each question.
        stops: choose a stop string from the vocabulary.
        questions: about each image, which come one after the other; the same about all. None: rows without images.
    """

    low: int | None = None
    high: int | None = None
    tail: int | None = None
    words: int | None = None
    few_shot: bool = False
    stops: bool = False
    questions: int | None = None


@dataclass(frozen=True)
class Workload:
    """The rows of a scenario, and facts about the model that its contenders need.

    Args:
        rows: under ROWS_SCHEMA: a prompt as in a dataset, as a ChatML turn and as tokens, tokens of its completion, and
            the number of its image, or null. The turn has IMAGE_MARK for an image, the tokens CELL for each cell.
        n_ctx_train: tokens that the model was trained for.
    """

    rows: pa.Table
    n_ctx_train: int
    stop: list[str]
    has_mask: bool = False
    images: Sequence[bytes] = ()
    """PNGs."""

    @property
    def prompt_tokens(self) -> int:
        return int(self._tokens()[0].sum())

    @property
    def new_tokens(self) -> int:
        return int(self._tokens()[1].sum())

    @property
    def template(self) -> str:
        """The template of the rows, of their columns prompt and image."""
        return CHATML_WITH_IMAGE if self.images else CHATML

    def image_of(self) -> list[int]:
        """Return the number of each row's image, where rows have images."""
        numbers: list[int] = self.rows["image"].to_pylist()
        return numbers

    def write_images(self, folder: Path) -> list[str]:
        """Write the images into a folder, and return the path of each row's."""
        paths = [folder / f"{i}.png" for i in range(len(self.images))]
        for path, image in zip(paths, self.images, strict=True):
            path.write_bytes(image)
        return [str(paths[i]) for i in self.image_of()]

    @property
    def longest(self) -> int:
        """Prompt and completion tokens of the longest row."""
        prompt, new = self._tokens()
        return int((prompt + new).max())

    @property
    def mean_depth(self) -> float:
        """Tokens in a row's KV cache, averaged over all decode steps."""
        prompt, new = self._tokens()
        # Step k of a row, k = 0, 1 ..., sees its prompt and the k tokens before.
        return float((new * prompt + new * (new - 1) / 2).sum() / new.sum())

    def _tokens(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        prompt = pc.list_value_length(self.rows["prompt_ids"])
        return prompt.to_numpy().astype(np.int64), self.rows["max_tokens"].to_numpy().astype(np.int64)


def make(
    recipe: Recipe, rows: int, copies: int, data: DataSettings, model: ModelSettings, bench: BenchSettings, cap: int
) -> Workload:
    """Make the rows of a recipe: `rows` prompts, each `copies` times, whose completions have at most `cap` tokens."""
    pairs = _read(data, bench.answer_column)
    asked = recipe.questions or rows
    texts = [*islice(cycle(_texts(recipe, asked, pairs, bench.shots)), rows)]
    template = Template(CHATML_WITH_IMAGE if recipe.questions else CHATML, "the benchmark's template", strict=True)
    rendered = [template.render({"prompt": text, "image": IMAGE_MARK}) for text in texts]
    loaded = loader(model)(model)  # for its tokenizer
    try:
        lengths = _lengths(recipe, rows, [answer for _, answer in pairs], cap, loaded)
        images, cells = _images(loaded, -(-rows // asked)) if recipe.questions else ([], 0)
        ids = [_ids(loaded, text, cells) for text in rendered]
        stop = (bench.stop or [_stop_string(loaded)]) if recipe.stops else []
        n_ctx_train, has_mask = loaded.n_ctx_train, loaded.mask_id is not None
    finally:
        close_model(loaded)
    numbers = [i // asked if images else None for i in range(rows)]
    table = pa.table(dict(zip(ROWS_SCHEMA.names, (texts, rendered, ids, lengths, numbers), strict=True)), ROWS_SCHEMA)
    return Workload(table.take(np.repeat(np.arange(rows), copies)), n_ctx_train, list(stop), has_mask, images)


def _ids(model: Model, text: str, cells: int) -> npt.NDArray[np.int32]:
    """Return the tokens of a prompt, with `cells` times CELL for its image."""
    before, *after = (model.tokenize([part.encode()], special=True)[0] for part in text.split(IMAGE_MARK))
    image = np.full(cells, CELL, np.int32)
    return np.concatenate([before, *(part for more in after for part in (image, more))])


def _images(model: Model, count: int) -> tuple[list[bytes], int]:
    """Return images, and the cells of one of them in a prompt."""
    if model.vision is None:
        raise ValueError("the model reads no images; name its encoder with model.mmproj=")
    return make_images(model.vision, count), image_cells(model.vision)


def _read(data: DataSettings, answer_column: str | None) -> list[tuple[str, str | None]]:
    """Return the prompts of the data, each with its reference answer if there is one."""
    source = ReadPrompts(data, chunk_rows=1 << 30)
    names, column = source.plan().names, data.prompt_column
    if column not in names:
        raise SchemaError(
            f"there is no column '{column}'; the columns are {', '.join(names)}:"
            " name the one that holds the prompt with data.prompt_column="
        )
    kept = [name for name in dict.fromkeys((column, answer_column)) if name in names]
    batches = (item.data.select(kept) for item in source.run(ListInbox()) if isinstance(item, Batch))
    pairs = [(row[column], row.get(answer_column)) for batch in batches for row in batch.to_pylist() if row[column]]
    if not pairs:
        raise SchemaError(f"column '{column}' of {data.path} holds no prompt")
    return pairs


def _texts(recipe: Recipe, rows: int, pairs: Sequence[tuple[str, str | None]], shots: int) -> list[str]:
    """Return `rows` distinct prompts: too few data are repeated, with a number after each text."""
    # The examples are the last rows, so that the questions are those of the other scenarios.
    examples = "".join(f"Question: {prompt}\nAnswer: {answer or ''}\n\n" for prompt, answer in pairs[-shots:])
    texts: list[str] = []
    for i in range(rows):
        again, at = divmod(i, len(pairs))
        text = pairs[at][0]
        if recipe.words is not None:
            text = f"{i}: " + " ".join(text.split()[: recipe.words])
        if again:
            text = f"{text} ({again + 1})"
        texts.append(f"{examples}Question: {text}\nAnswer:" if recipe.few_shot else text)
    return texts


def _lengths(
    recipe: Recipe, rows: int, answers: Sequence[str | None], cap: int, model: Model
) -> npt.NDArray[np.integer[Any]]:
    random = np.random.default_rng(0)
    if recipe.stops:
        return np.full(rows, cap)
    if recipe.low is not None and recipe.high is not None:
        lengths = random.integers(recipe.low, recipe.high + 1, rows)
        lengths[-2:] = recipe.tail or lengths[-2:]
        return lengths
    drawn = random.integers(min(10, cap), cap + 1, len(answers))
    by_answer = [
        int(n) if a is None else min(max(len(model.tokenize([str(a).encode()], special=True)[0]), 1), cap)
        for a, n in zip(answers, drawn, strict=True)
    ]
    return np.resize(by_answer, rows)


def _stop_string(model: Model) -> str:
    """Return the printable ASCII character that ends a row of uniformly drawn tokens after some _STOP_EVERY of them."""
    counts = np.zeros(256, np.int64)
    for piece in model.pieces():
        counts[list(set(piece))] += 1
    printable = range(33, 127)
    return chr(min(printable, key=lambda c: abs(int(counts[c]) - model.n_vocab / _STOP_EVERY)))
