"""Train the teacher: `python -m models.tiny.vision.teacher` (needs the `train` extra; ten minutes of one core).

It is told what a scene shows and makes the cells for which the frozen text model gives the right answers. The encoder
then learns to make the same cells of pictures, which costs a third of what learning through the text model does.
`--out` receives teacher.pt and teacher.jsonl.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.tiny.train import save
from models.tiny.vision.batches import TOLD, Asked, asked, told_of
from models.tiny.vision.frozen import FrozenText
from models.tiny.vision.scenes import COLOURS, DIGITS, KINDS, SHAPES, WORDS
from models.tiny.vision.steps import TEXT_MODEL, Rate, evaluate, make_optimizers, update

DIGIT_NAMES = tuple("0123456789")
log = logging.getLogger("tiny.vision.teacher")


class Teacher(nn.Module):
    """Cells for the text model, [scenes, cells, text_width], of what scenes are told by, int64 [scenes, len(TOLD)].

    At first the cells are the embeddings of the tokens of the content and of the colour, as they stand at the beginning
    of a text and behind a space: what the text model knows how to copy. What is added to them is learnt.
    """

    def __init__(self, text: FrozenText, cells: int, size: int = 64, hidden: int = 256) -> None:
        super().__init__()
        self.size, inner = size, cells - 2
        spelled = [[""] * len(KINDS), COLOURS, [*SHAPES, ""], [*WORDS, ""], *[[*DIGIT_NAMES, ""]] * DIGITS]
        self.spelled = nn.ModuleList(self._table(text, index, words, inner // 4) for index, words in enumerate(spelled))
        self.known = nn.ModuleList(nn.Embedding(count, size) for count in TOLD)
        self.mixed = nn.Sequential(
            nn.Linear(size * len(TOLD), hidden), nn.SiLU(), nn.LayerNorm(hidden), nn.Linear(hidden, inner * size)
        )
        self.place = nn.Parameter(torch.randn(inner, size) * 0.3)
        self.made = nn.Sequential(
            nn.LayerNorm(size), nn.Linear(size, 192), nn.SiLU(), nn.Linear(192, text.width, bias=False)
        )
        nn.init.normal_(self.made[3].weight, std=0.02)
        self.fixed = nn.Parameter(torch.randn(cells, text.width) * 0.1)

    def _table(self, text: FrozenText, index: int, words: Sequence[str], room: int) -> nn.Embedding:
        """The cells of each word, one behind the other: `room` for the content, as many behind a space, and as many for
        the colour and for the colour behind a space."""
        made = torch.zeros(len(words), 4, room, text.width)
        digit = index - (len(TOLD) - DIGITS)
        for number, word in enumerate(words):
            for behind_space in (0, 1):
                tokens = text.speller.spell(" " * behind_space + word)[:room] if word else ()
                if digit >= 0:
                    tokens = tokens[-1:]  # a space is a token of its own before digits
                first = max(0, digit) + (behind_space if digit >= 0 else 0)
                for place, token in enumerate(tokens, first):
                    made[number, 2 * (words is COLOURS) + behind_space, place] = text.embeddings[token]
        return nn.Embedding.from_pretrained(made.flatten(1), freeze=False)

    def forward(self, told: Tensor) -> Tensor:
        x = torch.cat([table(told[:, index]) for index, table in enumerate(self.known)], dim=-1)
        x = self.made(self.mixed(x).unflatten(-1, (-1, self.size)) + self.place)
        for index, table in enumerate(self.spelled):
            x = x + table(told[:, index]).unflatten(-1, x.shape[1:])
        return functional.pad(x, (0, 0, 1, 1)) + self.fixed


@dataclass(frozen=True)
class Lesson:
    """What a run does. `noise`: standard deviation of what is added to the cells, as a part of their own."""

    rate: Rate = field(default_factory=lambda: Rate(steps=800, peak=3e-3, warmup=30))
    seed: int = 1
    rows: int = 32
    noise: float = 0.15
    evaluate_every: int = 100


def teach(lesson: Lesson, cells: int, out: Path, text_model: Path = TEXT_MODEL) -> Teacher:
    """Run a lesson and write the teacher."""
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(lesson.seed)
    text = FrozenText(text_model)
    teacher = Teacher(text, cells)
    optimizers = make_optimizers(teacher, lesson.rate.peak)
    heldout = asked(0, 200, "heldout")

    def cells_of(rows: list[Asked]) -> Tensor:
        made: Tensor = teacher(torch.from_numpy(told_of(rows)))
        return made

    with (out / "teacher.jsonl").open("w") as lines:
        for step in range(lesson.rate.steps):
            started = time.process_time()
            rows = asked(lesson.seed * 1_000_003 + step, lesson.rows, "train")
            made = cells_of(rows)
            made = made + torch.randn_like(made) * (lesson.noise * made.detach().std())
            loss = text.answer_loss(made, text.asked_about(rows, cells))
            loss.backward()
            update(teacher, optimizers, lesson.rate.at(step))
            entry = {"step": step + 1, "loss": round(loss.item(), 4), "cpu_s": round(time.process_time() - started, 3)}
            if (step + 1) % lesson.evaluate_every == 0 or step + 1 == lesson.rate.steps:
                exact = evaluate(text, cells, cells_of, heldout)
                log.info("step %d loss %.3f %s", step + 1, loss.item(), json.dumps(exact))
                save(out / "teacher.pt", {"teacher": teacher.state_dict(), "step": step + 1})
            lines.write(json.dumps(entry) + "\n")
            lines.flush()
    return teacher


def load_teacher(path: Path, text: FrozenText, cells: int) -> Teacher:
    """The teacher that a run has written, to be asked only."""
    teacher = Teacher(text, cells)
    teacher.load_state_dict(torch.load(path, weights_only=True)["teacher"])
    teacher.requires_grad_(False)
    return teacher


def main() -> None:
    """The command line."""
    from models.tiny.vision.network import VisionShape

    parser = argparse.ArgumentParser(prog="python -m models.tiny.vision.teacher", description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=Lesson().rate.steps, help="optimiser steps (default %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("outputs/tiny_vision"), help="directory (default %(default)s)")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(1)
    teach(Lesson(Rate(options.steps, 3e-3, 30)), VisionShape().cells, options.out)


if __name__ == "__main__":
    main()
