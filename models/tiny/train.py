"""Train the small model on the CPU: `python -m models.tiny.train` (needs the `train` extra: torch, tokenizers ...).

    python -m models.tiny.train --steps 2230 --out outputs/tiny_train     # from scratch, about an hour on 2 cores
    python -m models.tiny.train --out outputs/tiny_train --resume         # go on after an interruption
    python -m models.tiny.train --blocks 4 --start models/tiny/tiny-q8_0.gguf --steps 1200 --rate 2e-3

The last one goes on from the weights of a GGUF file, and learns to fill in blocks of masked tokens (objectives.py).

Data are generated on the fly and never repeat as epochs. The learning rate depends on the step alone: it warms up,
holds, and falls to zero over the last part (Haegele et al. 2024), so a run may be stopped, resumed and replanned
with another `--steps`. `--out` receives checkpoint.pt, tokenizer.json, log.jsonl and loss.png.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # spinning threads starve each other on a shared machine
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional
from tqdm import tqdm

from models.tiny.batches import Batch
from models.tiny.chat import END, chat_prompt, load_tokenizer, train_tokenizer
from models.tiny.model import TinyModel
from models.tiny.objectives import MaskedBlocks, NextToken, Objective
from models.tiny.plot import plot_loss
from models.tiny.shape import Shape
from models.tiny.start import Start, start_of
from models.tiny.tasks import FAMILIES, generate

log = logging.getLogger("tiny.train")


@dataclass(frozen=True)
class Plan:
    """What a run does. Learning rates are for AdamW (embedding, norms) and, scaled to match it, Muon (matrices)."""

    steps: int = 2230
    seed: int = 1
    rows: int = 64
    groups: int = 5
    rate: float = 3e-3
    optimizer: str = "muon"
    warmup: int = 100
    decay: float = 0.4  # the last part of the run, over which the rate falls to zero
    weight_decay: float = 0.05
    evaluate_every: int = 250
    save_every: int = 100
    evaluation_rows: int = 420

    def factor(self, step: int) -> float:
        """The learning rate of a step as a part of the peak."""
        left = (self.steps - step) / max(1.0, self.steps * self.decay)
        return max(0.0, min(1.0, (step + 1) / self.warmup, left))


def make_optimizers(model: TinyModel, plan: Plan) -> list[torch.optim.Optimizer]:
    """AdamW for everything, or Muon for the matrices of the blocks and AdamW for the rest."""
    matrices = [p for p in model.blocks.parameters() if p.ndim == 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    decayed = [model.embed.weight] + ([] if plan.optimizer == "muon" else matrices)
    groups = [{"params": decayed, "weight_decay": plan.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    made: list[torch.optim.Optimizer] = [torch.optim.AdamW(groups, lr=plan.rate, betas=(0.9, 0.98), fused=True)]
    if plan.optimizer == "muon":
        made.append(
            torch.optim.Muon(matrices, lr=plan.rate, weight_decay=plan.weight_decay, adjust_lr_fn="match_rms_adamw")
        )
    return made


def completion_logits(model: TinyModel, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Logits [n, vocab], targets [n] and weights [n] at the positions that are learnt."""
    weights = torch.from_numpy(batch.weights).view(-1)
    chosen = weights.nonzero()[:, 0]
    view = () if batch.view is None else (torch.from_numpy(batch.view.positions), torch.from_numpy(batch.view.sees))
    with torch.autocast("cpu", torch.bfloat16):
        states = model.hidden(torch.from_numpy(batch.ids), *view).flatten(0, 1)[chosen]
        logits = functional.linear(states, model.embed.weight)
    return logits.float(), torch.from_numpy(batch.targets).view(-1)[chosen], weights[chosen]


def train_step(model: TinyModel, optimizers: list[torch.optim.Optimizer], batches: list[Batch], factor: float) -> float:
    """One update from all groups together; returns the weighted mean loss."""
    total_weight = float(sum(batch.weights.sum() for batch in batches))
    total_loss = 0.0
    for batch in batches:
        logits, targets, weights = completion_logits(model, batch)
        loss = (functional.cross_entropy(logits, targets, reduction="none") * weights).sum() / total_weight
        loss.backward()
        total_loss += loss.item()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = factor * group.setdefault("peak", group["lr"])
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return total_loss


@torch.no_grad()
def evaluate(model: TinyModel, tokenizer: Tokenizer, objective: Objective, rows: int) -> dict[str, float]:
    """By family, the share of held-out completions of which every token is the model's first choice.

    Where a prompt has one right completion this is the accuracy of greedy decoding (of blocks: from left to right); for
    stories and new instructions, of which many are right, it stays near zero.
    """
    chosen = generate(0, rows, "heldout")
    prompts = tokenizer.encode_batch([chat_prompt(e.prompt) for e in chosen])
    answers = tokenizer.encode_batch([e.completion + END for e in chosen])
    coded = [(p.ids + a.ids, len(p.ids)) for p, a in zip(prompts, answers, strict=True)]
    order = sorted(range(rows), key=lambda index: len(coded[index][0]))
    right = np.ones(rows, bool)
    for start in range(0, rows, 60):
        part = np.array(order[start : start + 60])
        for batch in objective.asked(tokenizer, [coded[index] for index in part]):
            logits, targets, _ = completion_logits(model, batch)
            wrong = (logits.argmax(-1) != targets).numpy()
            right[part[np.nonzero(batch.weights)[0][wrong]]] = False
    families = np.array([example.family for example in chosen])
    return {family: float(right[families == family].mean()) for family in FAMILIES}


def save(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint so that an interruption leaves the old one or the new one."""
    partial = path.with_suffix(".partial")
    torch.save(state, partial)
    partial.replace(path)


def keep_log(path: Path, steps: int) -> None:
    """Drop the lines of a training log that are later than the checkpoint at `steps`: they will come again."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    path.write_text("".join(lines[:steps]))


def prepare_tokenizer(path: Path, seed: int) -> Tokenizer:
    """The tokenizer of this run, trained on the corpus if it is not there yet."""
    if not path.exists():
        texts = (chat_prompt(e.prompt, "You are a helpful assistant.") + e.completion for e in generate(seed, 21_000))
        train_tokenizer(texts).save(str(path))
    return load_tokenizer(path)


def train(
    plan: Plan,
    out: Path,
    resume: bool,
    shape: Shape | None = None,
    objective: Objective | None = None,
    start: Start | None = None,
) -> Path:
    """Run a plan; returns the path of the last checkpoint.

    Args:
        objective: what is learnt; by default the next token.
        start: weights, sizes and tokenizer to begin with; by default random weights of `shape` and a new tokenizer.
    """
    out.mkdir(parents=True, exist_ok=True)
    checkpoint, log_path = out / "checkpoint.pt", out / "log.jsonl"
    objective = objective or NextToken()
    torch.manual_seed(plan.seed)
    if start is not None:
        start.tokenizer.save(str(out / "tokenizer.json"))
    tokenizer = prepare_tokenizer(out / "tokenizer.json", plan.seed)
    model = TinyModel(start.shape if start else shape or Shape(vocab=tokenizer.get_vocab_size()))
    if start is not None:
        model.load_state_dict({name: torch.from_numpy(values) for name, values in start.tensors.items()})
    optimizers = make_optimizers(model, plan)
    first, tokens = 0, 0
    if resume and checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        first, tokens = state["step"], state["tokens"]
    keep_log(log_path, first)
    log.info("%.2f M parameters, steps %d to %d", sum(p.numel() for p in model.parameters()) / 1e6, first, plan.steps)

    steps = objective.steps(tokenizer, plan.seed, first, plan.rows, plan.groups)
    bar = tqdm(range(first, plan.steps), initial=first, total=plan.steps, mininterval=5.0, unit="step")
    with log_path.open("a") as lines:
        for step in bar:
            batches = next(steps)
            started = time.process_time()
            loss = train_step(model, optimizers, batches, plan.factor(step))
            tokens += sum(batch.tokens for batch in batches)
            entry: dict[str, Any] = {"step": step + 1, "tokens": tokens, "loss": round(loss, 4)}
            entry["cpu_s"] = round(time.process_time() - started, 3)
            last = step + 1 == plan.steps
            if last or (step + 1) % plan.evaluate_every == 0:
                entry["exact"] = evaluate(model, tokenizer, objective, plan.evaluation_rows)
                tqdm.write(f"step {step + 1} tokens {tokens} loss {loss:.3f} " + json.dumps(entry["exact"]))
            lines.write(json.dumps(entry) + "\n")
            bar.set_postfix(loss=f"{loss:.3f}", tokens=tokens, refresh=False)
            if last or (step + 1) % plan.save_every == 0:
                lines.flush()
                states = [optimizer.state_dict() for optimizer in optimizers]
                kept = {"model": model.state_dict(), "optimizers": states, "step": step + 1, "tokens": tokens}
                save(checkpoint, kept | {"shape": asdict(model.shape), "plan": asdict(plan)})
                plot_loss(log_path, out / "loss.png")
    return checkpoint


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m models.tiny.train", description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=Plan.steps, help="optimiser steps (default %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("outputs/tiny_train"), help="directory (default %(default)s)")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")
    parser.add_argument("--seed", type=int, default=Plan.seed)
    parser.add_argument("--rate", type=float, default=Plan.rate, help="peak learning rate (default %(default)s)")
    parser.add_argument("--optimizer", choices=("adamw", "muon"), default=Plan.optimizer)
    parser.add_argument("--rows", type=int, default=Plan.rows, help="examples a step (default %(default)s)")
    parser.add_argument("--blocks", type=int, help="learn to fill in masked blocks of so many tokens")
    parser.add_argument("--start", type=Path, help="GGUF file to go on from: its weights, sizes and tokenizer")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(options.threads)
    plan = Plan(
        steps=options.steps,
        seed=options.seed,
        rate=options.rate,
        optimizer=options.optimizer,
        rows=options.rows,
    )
    objective = MaskedBlocks(options.blocks) if options.blocks else NextToken()
    train(plan, options.out, options.resume, None, objective, start_of(options.start) if options.start else None)


if __name__ == "__main__":
    main()
