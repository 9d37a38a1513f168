"""Write the small models of tests/families, each a model family of llama.cpp with random weights, and its reference.

    python -m venv ENV && ENV/bin/pip install torch==2.13.0 transformers==5.23.0 sentencepiece==0.2.3 protobuf==7.36.2
    pip download --no-deps --no-binary :all: llama-cpp-python==0.3.36 && tar xzf llama_cpp_python-0.3.36.tar.gz
    ENV/bin/python -m tests.families.make --llama-cpp llama_cpp_python-0.3.36/vendor/llama.cpp [FAMILY ...]

`transformers` makes the model from a tiny configuration and llama.cpp's own converter writes NAME.gguf. NAME.json has
what `transformers` says greedily in float32 to the prompts of `PROMPTS`, token by token; tests compare with that.

To add a family, add its configuration to `FAMILIES`: a class of `transformers` and the values that make it small
(500 KB at most). Run the script with its name, add the two files it wrote to git, its class to
operators/llama/kernels.py and its row to docs/models.md. The tests take every file that is there.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
from itertools import count
from math import inf
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
LARGEST = 500_000  # bytes of a file
NEW_TOKENS = 16
LEAST_TOKENS = 20  # different ones in the first eight texts: a model that repeats itself tests nothing
LEAST_GAP = 5e-4  # between the two best logits at any token: rounding may not decide
LOGIT_STD = 3.0
ATTENTION_GAIN = 2.0  # above 1, so that a token looks at few others
NORM_SPREAD = 0.1
EMBEDDING_STD = 0.02

_STRANGERS = "The-quick-brown-fox:jumps_over(13)lazy-dogs;and|writes=it/down.Then+sleeps"
_HEAD = "What-comes-first-is-the-same-for-all-of-these-rows:seventy-characters;"
# Without a space no two characters merge in the built-in vocabulary, so that tokens are bytes, and need no tokenizer.
PROMPTS = (
    *((_STRANGERS[i:] + _STRANGERS)[:length] for i, length in enumerate((5, 9, 17, 30, 48, 63, 64, 70))),
    *(_HEAD + "".join(map(str, range(n, 99)))[:n] for n in range(1, 41)),
)

# Sizes that are multiples of 32: of others llama.cpp takes other kernels than of the real models.
_SMALL = {"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
_TWO_LAYERS = {"num_hidden_layers": 2, "max_position_embeddings": 4096}
_TIED = {"tie_word_embeddings": True, "max_position_embeddings": 4096}
_SSM = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 1, "mamba_chunk_size": 16}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "lfm2": (
        "Lfm2Config",
        _SMALL
        | _TIED
        | {
            "num_hidden_layers": 3,
            "layer_types": ["conv", "full_attention", "conv"],
            "block_auto_adjust_ff_dim": False,
        },
    ),
    "mamba": ("MambaConfig", {"hidden_size": 64, "num_hidden_layers": 2, "state_size": 8}),
    "mamba2": (
        "Mamba2Config",
        {"hidden_size": 64, "num_hidden_layers": 2, "state_size": 16, "num_heads": 8, "head_dim": 16, "n_groups": 2}
        | {"chunk_size": 16, "tie_word_embeddings": True},
    ),
    "qwen3_5": (
        "Qwen3_5TextConfig",
        _SMALL
        | _TIED
        | {"intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
        | {"num_hidden_layers": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16}
        | {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "partial_rotary_factor": 0.25}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [1, 1, 0]}},
    ),
    "falcon_h1": (
        "FalconH1Config",
        _SMALL | _TIED | _SSM | {"head_dim": 16, "num_hidden_layers": 2, "mamba_d_ssm": 64},
    ),
    "qwen3moe": (
        "Qwen3MoeConfig",
        _SMALL
        | _TIED
        | {"head_dim": 16, "num_hidden_layers": 2, "num_experts": 4, "num_experts_per_tok": 2}
        | {"moe_intermediate_size": 32, "norm_topk_prob": True},
    ),
    "gpt-oss": (
        "GptOssConfig",
        _SMALL
        | _TWO_LAYERS
        | {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "intermediate_size": 32}
        | {"num_local_experts": 3, "num_experts_per_tok": 2}
        | {"sliding_window": 32, "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0}},
    ),
    "gemma3": (  # the sixth layer is the first without a window
        "Gemma3TextConfig",
        _SMALL
        | _TIED
        | {"intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
        | {"query_pre_attn_scalar": 16, "num_hidden_layers": 6, "sliding_window": 32},
    ),
    "olmo2": ("Olmo2Config", _SMALL | _TWO_LAYERS),
}


def main() -> int:
    """Write the families that are named, or all."""
    parser = argparse.ArgumentParser(description="Write the small models of tests/families and their references.")
    parser.add_argument("--llama-cpp", type=Path, required=True, metavar="DIR", help="llama.cpp's source")
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=f"default: all of {', '.join(FAMILIES)}")
    options = parser.parse_args()
    sys.path[:0] = [str(options.llama_cpp), str(options.llama_cpp / "gguf-py")]
    for name in options.families or FAMILIES:
        model, reference = _talkative_model(name)
        path = FOLDER / f"{name}.gguf"
        convert(model, name, path)
        path.with_suffix(".json").write_text(json.dumps(reference) + "\n", encoding="utf-8")
        print(f"{path.name}: {path.stat().st_size:,} bytes, seed {reference['seed']}, gap {reference['least_gap']}")
        if path.stat().st_size > LARGEST:
            raise SystemExit(f"{path.name} is larger than {LARGEST:,} bytes; make its configuration smaller")
    return 0


def _talkative_model(name: str) -> tuple[Any, dict[str, Any]]:
    """The model of the first seed whose texts can be compared, and what they are."""
    torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
    kind, values = FAMILIES[name]
    vocabulary = _vocabulary()
    ends = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    for seed in count():
        torch.manual_seed(seed)
        config = getattr(transformers, kind)(vocab_size=vocabulary.n_tokens, **ends, **values)
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
        with torch.no_grad():
            _draw(model, torch)
            texts, gap = [], inf
            for prompt in PROMPTS:
                if gap >= LEAST_GAP:
                    text, least = _complete(model, torch, prompt)
                    texts.append(text)
                    gap = min(gap, least)
        different = len({token for text in texts[:8] for token in text})
        print(f"{name}, seed {seed}: {different} different tokens, least gap {gap:.1e}", file=sys.stderr)
        if different >= LEAST_TOKENS and gap >= LEAST_GAP:
            versions = {"transformers": transformers.__version__, "torch": torch.__version__.partition("+")[0]}
            return model, {"seed": seed, "least_gap": round(gap, 5), **versions, "prompts": PROMPTS, "ids": texts}
    raise AssertionError


def _draw(model: Any, torch: Any) -> None:
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
    scale = LOGIT_STD / model(_as_ids(torch, PROMPTS[-1].encode())).logits.std()
    last_norm.copy_((last_norm + zero_based) * scale - zero_based)


def _complete(model: Any, torch: Any, prompt: str) -> tuple[list[int], float]:
    """The greedy continuation, never with a token that ends a text, and the least gap between the two best logits."""
    ids = [*prompt.encode()]
    first_special = _vocabulary().n_tokens - 4
    ends = [first_special, first_special + 2]  # <|endoftext|> and <|im_end|>
    gaps = []
    for _ in range(NEW_TOKENS):
        logits = model(_as_ids(torch, ids), use_cache=False).logits[0, -1]
        logits[ends] = -torch.inf
        best = logits.topk(2)
        gaps.append(float(best.values[0] - best.values[1]))
        ids.append(int(best.indices[0]))
    return ids[len(prompt) :], min(gaps)


def _as_ids(torch: Any, ids: Any) -> Any:
    return torch.tensor([list(ids)])


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
        kind = conversion.ModelType.TEXT
        writer_class = conversion.get_model_class(conversion.get_model_architecture(hparams, kind))
        writer_class.no_mtp = True  # the small models have no heads that guess further tokens
        writer = writer_class(Path(folder), gguf.LlamaFileType.ALL_F32, path, model_name=name)
        writer.set_vocab = lambda: vocabulary.add_to(writer.gguf_writer)
        writer.write()


def _vocabulary() -> Any:
    return importlib.import_module("tools.models.vocabularies").builtin_vocabulary()


if __name__ == "__main__":
    sys.exit(main())
