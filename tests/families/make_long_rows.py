"""Write long_rows.json: what `transformers` says behind rows longer than a model was trained for, with scaled
positions, and with a cache of rounded keys and values.

It needs what make.py beside it needs. For each family and scaling it has the logits behind `IDS`, in float32, and the
greedy ids from there: of a model with the weights of NAME.gguf whose configuration says that it was trained for
`TRAINED` tokens and scales positions by `FACTOR`; and of one (`ROUNDED`) whose attention rounds to Q8_0.

    ENV/bin/python -m tests.families.make_long_rows
"""

from __future__ import annotations

import copy
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from tests.families.make import FOLDER, drawn

FILE = Path(__file__).parent / "long_rows.json"
SCALED = ("llama", "qwen3", "gemma3", "qwen3_5")
SCORES = "deepseek2"
"""Of which YaRN scales the attention scores, as the published models say (mscale_all_dim)."""
ROUNDED = "qwen3"
SCALINGS = ("yarn", "linear")
TRAINED, FACTOR, NEW_TOKENS = 128, 4.0, 24
IDS = [i * i * 7 % 251 for i in range(300)]


def main() -> int:
    """Write all references."""
    importlib.import_module("torch").set_num_threads(1)
    references = {}
    for name in (*SCALED, SCORES):
        seed = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))["seed"]
        model = drawn(name, seed)
        for scaling in SCALINGS if name in SCALED else SCALINGS[:1]:
            references[f"{name} {scaling}"] = _said(_scaled(model, scaling))
        if name == ROUNDED:
            references[f"{name} q8_0"] = _said(_rounded(model))
    FILE.write_text(json.dumps(references) + "\n", encoding="utf-8")
    return 0


def _scaled(model: Any, scaling: str) -> Any:
    """A model with the same weights, and scaled positions; where layers have windows, in the others."""
    transformers = importlib.import_module("transformers")
    config = copy.deepcopy(model.config)
    given = {"rope_type": scaling, "factor": FACTOR, "original_max_position_embeddings": TRAINED}
    if config.model_type == "deepseek_v2":
        given |= {"mscale": 1.0, "mscale_all_dim": 1.0}
    parameters = config.rope_parameters
    (parameters.get("full_attention") or parameters).update(given)
    config.max_position_embeddings = int(TRAINED * FACTOR)
    scaled = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    scaled.load_state_dict(model.state_dict())
    return scaled


def _rounded(model: Any) -> Any:
    """The model with keys and values in Q8_0, and queries, which llama.cpp rounds to multiply them."""
    module: Any = importlib.import_module(type(model).__module__)
    exact = module.eager_attention_forward

    def rounding(layer: Any, *states: Any, **options: Any) -> Any:
        return exact(layer, *map(_q8_0, states[:3]), *states[3:], **options)

    module.eager_attention_forward = rounding
    return model


def _q8_0(states: Any) -> Any:
    """What is left of numbers in Q8_0: in blocks of 32, whole multiples of a scale in F16."""
    blocks = states.reshape(*states.shape[:-1], -1, 32)
    scale = blocks.abs().amax(-1, keepdim=True) / 127
    return ((blocks / scale).round() * scale.half().float()).reshape(states.shape)


def _said(model: Any) -> dict[str, Any]:
    torch = importlib.import_module("torch")
    ids, rows = [*IDS], []
    for _ in range(NEW_TOKENS):
        rows.append(model(torch.tensor([ids]), use_cache=False).logits[0, -1].numpy())
        ids.append(int(rows[-1].argmax()))
    gap = min(float(np.diff(np.sort(row)[-2:])[0]) for row in rows)
    logits = [round(float(x), 5) for x in rows[0]]
    return {"ids": ids[len(IDS) :], "least_gap": round(gap, 5), "logits": logits}


if __name__ == "__main__":
    sys.exit(main())
