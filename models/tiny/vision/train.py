"""Train the small vision model on the CPU: `python -m models.tiny.vision.train` (needs the `train` extra).

    python -m models.tiny.vision.train --out outputs/tiny_vision               # about an hour of one core
    python -m models.tiny.vision.train --out outputs/tiny_vision --resume      # go on after an interruption

The text model stays as it is: gradients go through its frozen weights into the encoder, whose cells stand in the prompt
where the picture is. Helpers that are thrown away read the kind, the colour, the shape and the letters off the cells;
the first steps learn from them alone, which is cheaper. The learning rate depends on the step alone, as in
models/tiny/train.py. `--out` receives checkpoint.pt and log.jsonl.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import count, islice
from pathlib import Path
from random import Random
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional

from models.tiny.model import TinyModel
from models.tiny.start import start_of
from models.tiny.train import keep_log, save
from models.tiny.vision.batches import CELL, TOLD, Asked, PictureBatch, asked, batch_of
from models.tiny.vision.network import Encoder, VisionShape

log = logging.getLogger("tiny.vision.train")

TEXT_MODEL = Path(__file__).parents[1] / "tiny-q8_0.gguf"


@dataclass(frozen=True)
class Plan:
    """What a run does. The first `looking` steps learn from the helpers alone."""

    steps: int = 6000
    looking: int = 2000
    seed: int = 1
    rows: int = 64
    rate: float = 2e-3
    warmup: int = 100
    decay: float = 0.4
    weight_decay: float = 0.02
    helpers: float = 0.3
    evaluate_every: int = 500
    save_every: int = 200
    evaluation_rows: int = 400

    def factor(self, step: int) -> float:
        """The learning rate of a step as a part of the peak."""
        left = (self.steps - step) / max(1.0, self.steps * self.decay)
        return max(0.0, min(1.0, (step + 1) / self.warmup, left))


class Helpers(nn.Module):
    """Reads what a picture shows off its cells; only for the training."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.randn(len(TOLD), width) * 0.1)
        self.keys = nn.Linear(width, width)
        self.values = nn.Linear(width, width)
        self.heads = nn.ModuleList(nn.Linear(width, classes) for classes in TOLD)

    def forward(self, cells: Tensor) -> list[Tensor]:
        """Logits [pictures, classes] for each of TOLD, of cells [pictures, cells, width]."""
        x = functional.layer_norm(cells, cells.shape[-1:])
        seen = torch.softmax(self.queries @ self.keys(x).transpose(-1, -2) * x.shape[-1] ** -0.5, dim=-1)
        found = seen @ functional.silu(self.values(x))
        return [head(found[:, index]) for index, head in enumerate(self.heads)]


def make_optimizers(encoder: Encoder, helpers: Helpers, plan: Plan) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the encoder, AdamW for the rest."""
    matrices = [p for name, p in encoder.named_parameters() if p.ndim == 2 and name != "position_embd"]
    rest = [p for name, p in encoder.named_parameters() if p.ndim != 2 or name == "position_embd"]
    return [
        torch.optim.AdamW(
            [*rest, *helpers.parameters()], lr=plan.rate, betas=(0.9, 0.98), weight_decay=0.0, fused=True
        ),
        torch.optim.Muon(matrices, lr=plan.rate, weight_decay=plan.weight_decay, adjust_lr_fn="match_rms_adamw"),
    ]


def answer_logits(text: TinyModel, cells: Tensor, batch: PictureBatch) -> tuple[Tensor, Tensor, Tensor]:
    """Logits [n, vocab], targets [n] and weights [n] of the answers' tokens."""
    ids = torch.from_numpy(batch.ids)
    x = text.embed(ids.clamp(min=0)).float()
    x = x.masked_scatter((ids == CELL)[:, :, None], cells)
    weights = torch.from_numpy(batch.weights).view(-1)
    chosen = weights.nonzero()[:, 0]
    states = text.states(x).flatten(0, 1)[chosen]
    logits = functional.linear(states.to(text.embed.weight.dtype), text.embed.weight)
    return logits.float(), torch.from_numpy(batch.targets).view(-1)[chosen], weights[chosen]


def loss_of(text: TinyModel, encoder: Encoder, helpers: Helpers, batch: PictureBatch, plan: Plan, step: int) -> Tensor:
    """What is learnt at a step."""
    with torch.autocast("cpu", torch.bfloat16):
        cells = encoder(torch.from_numpy(batch.pixels))
        told = torch.from_numpy(batch.told)
        found = helpers(cells)
        helped = sum(functional.cross_entropy(f.float(), t) for f, t in zip(found, told.T, strict=True)) / len(TOLD)
        if step < plan.looking:
            return helped
        logits, targets, weights = answer_logits(text, cells, batch)
    learnt = (functional.cross_entropy(logits, targets, reduction="none") * weights).sum() / weights.sum()
    return learnt + plan.helpers * helped


@torch.no_grad()
def evaluate(
    text: TinyModel, encoder: Encoder, helpers: Helpers, tokenizer: Tokenizer, rows: list[Asked]
) -> dict[str, float]:
    """By family, the share of answers of which every token is the model's first choice, given the right ones before.

    `helpers` is the share of pictures of which the helpers know all.
    """
    right: Counter[str] = Counter()
    for start in range(0, len(rows), 64):
        part = rows[start : start + 64]
        batch = batch_of(tokenizer, part, encoder.shape.cells, Random(0))
        with torch.autocast("cpu", torch.bfloat16):
            cells = encoder(torch.from_numpy(batch.pixels))
            logits, targets, _ = answer_logits(text, cells, batch)
            found = torch.stack([part.argmax(-1) for part in helpers(cells)], dim=1)
        right["helpers"] += int((found == torch.from_numpy(batch.told)).all(1).sum())
        owner = torch.from_numpy(batch.weights).nonzero()[:, 0]
        wrong = set(owner[logits.argmax(-1) != targets].tolist())
        right.update(row.family for index, row in enumerate(part) if index not in wrong)
    asked_for = Counter(row.family for row in rows) + Counter(helpers=len(rows))
    return {family: round(right[family] / count, 3) for family, count in sorted(asked_for.items())}


def batches(tokenizer: Tokenizer, plan: Plan, first: int, cells: int) -> Iterator[tuple[int, list[PictureBatch]]]:
    """Step `first`, `first + 1` ... and its batches; step k is the same whether the run was resumed or not."""
    for step in count(first):
        seed = plan.seed * 1_000_003 + step
        rows, rng = asked(seed, plan.rows, "train"), Random(seed)
        groups = [rows] if step < plan.looking else halves(rows)
        yield step, [batch_of(tokenizer, group, cells, rng) for group in groups]


def halves(rows: list[Asked]) -> list[list[Asked]]:
    """The rows with short and with long prompts and answers: less padding."""
    rows = sorted(rows, key=lambda row: len(row.question) + len(row.answer))
    return [rows[: len(rows) // 2], rows[len(rows) // 2 :]]


def train(plan: Plan, out: Path, resume: bool, text_model: Path = TEXT_MODEL, shape: VisionShape | None = None) -> Path:
    """Run a plan; returns the path of the last checkpoint."""
    out.mkdir(parents=True, exist_ok=True)
    checkpoint, log_path = out / "checkpoint.pt", out / "log.jsonl"
    torch.manual_seed(plan.seed)
    start = start_of(text_model)
    text = TinyModel(start.shape)
    text.load_state_dict({name: torch.from_numpy(values) for name, values in start.tensors.items()})
    text.requires_grad_(False)
    for parameter in text.parameters():
        if parameter.ndim == 2:
            parameter.data = parameter.data.bfloat16()
    encoder = Encoder(shape or VisionShape(text_width=start.shape.width), float(start.tensors["embed.weight"].std()))
    helpers = Helpers(start.shape.width)
    optimizers = make_optimizers(encoder, helpers, plan)
    first = 0
    if resume and checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        encoder.load_state_dict(state["encoder"])
        helpers.load_state_dict(state["helpers"])
        for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        first = state["step"]
    keep_log(log_path, first)
    heldout = asked(0, plan.evaluation_rows, "heldout")
    drawn = batches(start.tokenizer, plan, first, encoder.shape.cells)
    parameters = [*encoder.parameters(), *helpers.parameters()]
    with log_path.open("a") as lines:
        for step, groups in islice(drawn, plan.steps - first):
            started = time.process_time()
            loss = 0.0
            for batch in groups:
                part = loss_of(text, encoder, helpers, batch, plan, step) / len(groups)
                part.backward()
                loss += part.item()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            for optimizer in optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = plan.factor(step) * plan.rate
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            entry: dict[str, Any] = {"step": step + 1, "loss": round(loss, 4)}
            entry["cpu_s"] = round(time.process_time() - started, 3)
            last = step + 1 == plan.steps
            if last or (step + 1) % plan.evaluate_every == 0:
                entry["exact"] = evaluate(text, encoder, helpers, start.tokenizer, heldout)
                log.info("step %d loss %.3f %s", step + 1, loss, json.dumps(entry["exact"]))
            lines.write(json.dumps(entry) + "\n")
            if last or (step + 1) % plan.save_every == 0:
                lines.flush()
                kept = {"encoder": encoder.state_dict(), "helpers": helpers.state_dict(), "step": step + 1}
                kept["optimizers"] = [optimizer.state_dict() for optimizer in optimizers]
                save(checkpoint, kept | {"shape": asdict(encoder.shape), "plan": asdict(plan)})
    return checkpoint


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m models.tiny.vision.train", description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=Plan.steps, help="optimiser steps (default %(default)s)")
    parser.add_argument("--looking", type=int, default=Plan.looking, help="of them without the text model")
    parser.add_argument("--out", type=Path, default=Path("outputs/tiny_vision"), help="directory (default %(default)s)")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")
    parser.add_argument("--seed", type=int, default=Plan.seed)
    parser.add_argument("--rate", type=float, default=Plan.rate, help="peak learning rate (default %(default)s)")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(options.threads)
    plan = Plan(steps=options.steps, looking=options.looking, seed=options.seed, rate=options.rate)
    train(plan, options.out, options.resume)


if __name__ == "__main__":
    main()
