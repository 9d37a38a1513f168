"""Write the small models of tests/families, each a model family of llama.cpp with random weights, and its reference.

    python -m venv ENV && ENV/bin/pip install torch==2.13.0 transformers==5.23.0 sentencepiece==0.2.3 protobuf==7.36.2
    pip download --no-deps --no-binary :all: llama-cpp-python==0.3.36 && tar xzf llama_cpp_python-0.3.36.tar.gz
    ENV/bin/python -m tests.families.make --llama-cpp llama_cpp_python-0.3.36/vendor/llama.cpp [FAMILY ...]

`transformers` makes the model from a tiny configuration (configs.py) and llama.cpp's own converter writes NAME.gguf;
RWKV-7, which `transformers` does not have, is rwkv7.py. NAME.json has what the model says greedily in float32:

- `ids`: of each prompt of `PROMPTS`, token by token;
- `logits`: behind the last token of the prompt `LOGITS_OF`;
- `near_ties`: [prompt, token, best id, second id, gap of their logits], wherever the gap is below `NEAR`. None is
  below `LEAST_GAP`: such a seed is left out, as rounding would decide what is right.

To add a family:

1. Add its configuration to `FAMILIES` in configs.py: a class of `transformers` and the values that make it small.
2. Run this script with its name. It tells when the file is larger than 500 KB: then make the configuration smaller.
   Where the converter does not know a value of the configuration, `EDITS` has the one of the published models.
3. Add NAME.gguf and NAME.json to git. tests/families/test_*.py take every family that is there.
4. Add its `general.architecture` to CLASSES in operators/llama/kernels.py if test_exact.py is green, and its row to
   the table of docs/models.md. If it is not to the bit, leave it out of CLASSES: then a run warns. The table says so.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
from collections.abc import Callable
from itertools import count
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tests.families.configs import EDITS, FAMILIES

FOLDER = Path(__file__).parent
LARGEST = 500_000  # bytes of a file
NEW_TOKENS = 24
LEAST_TOKENS = 20  # different ones in the first eight texts: a model that repeats itself tests nothing
LEAST_GAP = 5e-4  # between the two best logits at any token: rounding may not decide
NEAR = 2e-3
LOGIT_STD = 3.0
ATTENTION_GAIN = 2.0  # above 1, so that a token looks at few others
NORM_SPREAD = 0.1
EMBEDDING_STD = 0.02

_STRANGERS = "The-quick-brown-fox:jumps_over(13)lazy-dogs;and|writes=it/down.Then+sleeps"
_HEAD = "What-comes-first-is-the-same-for-all-of-these-rows:seventy-characters;"
STRANGERS = 8
# Without a space no two characters merge in the built-in vocabulary, so that tokens are bytes, and need no tokenizer.
PROMPTS = (
    *((_STRANGERS[i:] + _STRANGERS)[:length] for i, length in enumerate((5, 9, 17, 30, 48, 63, 64, 70))),
    *(_HEAD + "".join(map(str, range(n, 99)))[:n] for n in range(1, 41)),
)
LOGITS_OF = 4


class Drawn(NamedTuple):
    """A model with random weights.

    Args:
        logits: of the token behind these ids: float32[n_vocab].
        write: writes it as a GGUF file.
        versions: of what computes.
    """

    logits: Callable[[list[int]], np.ndarray]
    write: Callable[[Path], None]
    versions: dict[str, str]


def main() -> int:
    """Write the families that are named, or all."""
    names = [*FAMILIES, "rwkv7"]
    parser = argparse.ArgumentParser(description="Write the small models of tests/families and their references.")
    parser.add_argument("--llama-cpp", type=Path, required=True, metavar="DIR", help="llama.cpp's source")
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=f"default: all of {', '.join(names)}")
    options = parser.parse_args()
    sys.path[:0] = [str(options.llama_cpp), str(options.llama_cpp / "gguf-py")]
    for name in options.families or names:
        model, reference = _talkative_model(name)
        path = FOLDER / f"{name}.gguf"
        model.write(path)
        path.with_suffix(".json").write_text(json.dumps(reference) + "\n", encoding="utf-8")
        print(f"{path.name}: {path.stat().st_size:,} bytes, seed {reference['seed']}, gap {reference['least_gap']}")
        if path.stat().st_size > LARGEST:
            raise SystemExit(f"{path.name} is larger than {LARGEST:,} bytes; make its configuration smaller")
    return 0


def _talkative_model(name: str) -> tuple[Drawn, dict[str, Any]]:
    """The model of the first seed whose texts can be compared, and what they are."""
    for seed in count():
        model = _draw_rwkv7(seed) if name == "rwkv7" else _draw_transformer(name, seed)
        texts: list[list[int]] = []
        gap, near = inf, []
        for i, prompt in enumerate(PROMPTS):
            text, ties = _complete(model, prompt)
            texts.append(text)
            near += [[i, *tie] for tie in ties if tie[-1] < NEAR]
            gap = min(gap, *(tie[-1] for tie in ties))
            if gap < LEAST_GAP:
                break
        different = len({token for text in texts[:STRANGERS] for token in text})
        print(f"{name}, seed {seed}: {different} different tokens, least gap {gap:.1e}", file=sys.stderr)
        if gap >= LEAST_GAP and different >= LEAST_TOKENS:
            logits = [round(float(x), 5) for x in model.logits([*PROMPTS[LOGITS_OF].encode()])]
            reference = {"seed": seed, "least_gap": round(gap, 5), **model.versions, "near_ties": near}
            return model, reference | {"prompts": PROMPTS, "ids": texts, "logits": logits}
    raise AssertionError


def _draw_rwkv7(seed: int) -> Drawn:
    rwkv7 = importlib.import_module("tests.families.rwkv7")
    vocabulary = _vocabulary()
    model = rwkv7.Rwkv7(vocabulary.n_tokens, seed)
    return Drawn(model.logits, lambda path: model.write(path, vocabulary), {"numpy": np.__version__})


def _draw_transformer(name: str, seed: int) -> Drawn:
    torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
    model = drawn(name, seed)

    def logits(ids: list[int]) -> np.ndarray:
        found: np.ndarray = model(torch.tensor([ids]), use_cache=False).logits[0, -1].numpy()
        return found

    versions = {"transformers": transformers.__version__, "torch": torch.__version__.partition("+")[0]}
    return Drawn(logits, lambda path: convert(model, name, path), versions)


def drawn(name: str, seed: int) -> Any:
    """A model of `transformers` with the weights of a seed."""
    torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
    torch.manual_seed(seed)
    torch.set_grad_enabled(False)
    kind, values = FAMILIES[name]
    ends = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    config = getattr(transformers, kind)(vocab_size=_vocabulary().n_tokens, **ends, **values)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    draw(model, torch)
    return model


def draw(model: Any, torch: Any) -> None:
    """Draw weights that let a model of any depth wander, as tools/models/shapes.py does, and why."""
    last_norm = None
    for name, weight in model.named_parameters():
        if name.endswith(("A_log", ".D", "dt_bias", "dt_proj.weight", "dt_proj.bias")):
            continue  # as the family draws them: how fast a state fades
        if weight.ndim == 1:
            if ".layers." not in name:
                last_norm = weight
                zero_based = float(weight.mean() < 0.5)  # such a norm adds one
            weight += NORM_SPREAD * torch.randn_like(weight)
        elif "embed" in name:
            weight.normal_(0, EMBEDDING_STD)
        else:
            fan_in = min(weight.shape[1:]) if "experts" in name else weight[0].numel()
            gain = ATTENTION_GAIN if "q_proj" in name else 1.0
            weight.normal_(0, gain * fan_in**-0.5)
    assert last_norm is not None
    scale = LOGIT_STD / model(torch.tensor([[*PROMPTS[-1].encode()]])).logits.std()
    last_norm.copy_((last_norm + zero_based) * scale - zero_based)


def _complete(model: Drawn, prompt: str) -> tuple[list[int], list[list[Any]]]:
    """The greedy continuation, never with a token that ends a text, and [token, best id, second id, gap] of each."""
    ids = [*prompt.encode()]
    first_special = _vocabulary().n_tokens - 4
    ends = [first_special, first_special + 2]  # <|endoftext|> and <|im_end|>
    ties = []
    for step in range(NEW_TOKENS):
        logits = model.logits(ids).copy()
        logits[ends] = -np.inf
        second, best = np.argsort(logits)[-2:].tolist()
        ties.append([step, best, second, round(float(logits[best] - logits[second]), 6)])
        ids.append(best)
    return ids[len(prompt) :], ties


def convert(model: Any, name: str, path: Path) -> None:
    """Have llama.cpp's converter write `model`, with the project's built-in vocabulary."""
    conversion, gguf = importlib.import_module("conversion"), importlib.import_module("gguf")
    vocabulary = _vocabulary()
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        tokens = {str(i): i for i in range(vocabulary.n_tokens)}  # some converters count them
        stub = json.dumps({"model": {"vocab": tokens}, "added_tokens": []})
        (Path(folder) / "tokenizer.json").write_text(stub, encoding="utf-8")
        hparams = conversion.ModelBase.load_hparams(Path(folder), False)
        edits = EDITS.get(name, {})
        hparams = {key: value for key, value in (hparams | edits).items() if key not in edits or value is not None}
        kind = conversion.ModelType.TEXT
        writer_class = conversion.get_model_class(conversion.get_model_architecture(hparams, kind))
        writer_class.no_mtp = True  # the small models have no heads that guess further tokens
        given = {"hparams": hparams} if edits else {}  # by itself a converter reads the folder
        # llama.cpp has rules for vocabularies of models that are called after some families.
        writer = writer_class(Path(folder), gguf.LlamaFileType.ALL_F32, path, model_name="tiny", **given)
        writer.set_vocab = lambda: vocabulary.add_to(writer.gguf_writer)
        writer.write()


def _vocabulary() -> Any:
    return importlib.import_module("tools.models.vocabularies").builtin_vocabulary()


if __name__ == "__main__":
    sys.exit(main())
