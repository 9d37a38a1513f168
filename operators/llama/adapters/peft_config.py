"""Reads `adapter_config.json` of PEFT: the scale of each module, and what an adapter there is beyond a plain LoRA."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from operators.llama.adapters.tensors import AdapterSource

CONFIG = "adapter_config.json"
_OTHER_BASE = ("pissa", "olora", "corda", "lora_ga")
"""Ways to begin a training that change the base, too."""
_REFUSED: Mapping[str, str] = {
    "use_dora": "it is a DoRA, which also trains a magnitude of each row; train with use_dora=false, or merge it",
    "use_qalora": "it is a QA-LoRA, which pools what it reads; merge it",
    "lora_bias": "its matrices have biases; train with lora_bias=false, or merge it",
    "modules_to_save": "it has whole trained modules; train without modules_to_save, or merge it",
    "trainable_token_indices": "it has trained tokens; train without trainable_token_indices, or merge it",
    "target_parameters": "it has adapters of parameters that are no modules (experts); merge it",
    "layer_replication": "it repeats layers of its base; merge it",
    "fan_in_fan_out": "its weights lie the other way around (those of GPT-2's Conv1D); merge it",
    "alora_invocation_tokens": "it is an activated LoRA (aLoRA), which acts only behind these tokens; that is not"
    " supported",
    **dict.fromkeys(
        ("use_bdlora", "kasa_config", "monteclora_config"), "it is no product of two whole matrices; merge it"
    ),
    "arrow_config": "it chooses among adapters by itself (Arrow); give these adapters instead",
}
"""Keys that make another thing of an adapter, and what to do."""
MERGE = " (with PEFT's merge_and_unload) into its base and convert the result"


@dataclass(frozen=True)
class PeftConfig:
    """What the configuration says of ranks and scales. The patterns: by a regular expression for ends of names."""

    rank: int
    alpha: float
    rslora: bool
    ranks: Mapping[str, int]
    alphas: Mapping[str, float]

    def rank_of(self, module: str) -> int:
        """Return the rank of a module's adapter."""
        return self.ranks.get(_pattern(self.ranks, module), self.rank)

    def factor(self, module: str) -> float:
        """Return what the product of a module's matrices is multiplied with."""
        alpha, rank = self.alphas.get(_pattern(self.alphas, module), self.alpha), self.rank_of(module)
        return alpha / (math.sqrt(rank) if self.rslora else rank)


def _pattern(patterns: Mapping[str, Any], module: str) -> str:
    """Return the first of PEFT's patterns that fits a module; its name if none does."""
    return next((pattern for pattern in patterns if re.match(rf"(.*\.)?({pattern})$", module)), module)


def read_peft_config(source: AdapterSource) -> PeftConfig:
    """Read and check the configuration in the folder of an adapter. Raises InputError if it is missing or damaged, or
    the adapter is no plain LoRA."""
    path = source.path / CONFIG
    if not path.is_file():
        raise source.error(
            f"is a folder without {CONFIG}: give the folder that PEFT's save_pretrained wrote, or a GGUF"
        )
    try:
        said = json.loads(path.read_bytes())
        if not isinstance(said, dict):
            raise ValueError("it is no JSON object")
        config = _config(said)
        for pattern in (*config.ranks, *config.alphas):
            re.compile(pattern)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, re.error) as error:
        what = f"without {error}" if isinstance(error, KeyError) else f"that cannot be read ({error})"
        raise source.error(f"is a configuration {what}; save the adapter again", path) from error
    if said.get("peft_type", "LORA") != "LORA":
        raise source.error(f"has peft_type={said['peft_type']}, and only LORA is supported; merge it{MERGE}", path)
    if (init := str(said.get("init_lora_weights")).lower()).startswith(_OTHER_BASE):
        raise source.error(
            f"has init_lora_weights={init}, which changed the base, too: save the adapter with"
            " path_initial_model_for_weight_conversion, which makes a plain LoRA of it",
            path,
        )
    for key, why in _REFUSED.items():
        if said.get(key):
            raise source.error(f"has {key}={said[key]}: {why}{MERGE if why.endswith('merge it') else ''}", path)
    return config


def _config(said: Mapping[str, Any]) -> PeftConfig:
    ranks = {str(key): int(rank) for key, rank in (said.get("rank_pattern") or {}).items()}
    alphas = {str(key): float(alpha) for key, alpha in (said.get("alpha_pattern") or {}).items()}
    config = PeftConfig(int(said["r"]), float(said["lora_alpha"]), bool(said.get("use_rslora")), ranks, alphas)
    if min(config.rank, *ranks.values(), 1) < 1:
        raise ValueError("a rank is below 1")
    if not all(map(math.isfinite, (config.alpha, *alphas.values()))):
        raise ValueError("an alpha is NaN or infinite")
    return config


def scales_beside(said: Any) -> str | None:
    """Return what of a configuration llama.cpp's converter does not know of scales; None if it knows all."""
    if not isinstance(said, dict):
        return None
    return next((key for key in ("use_rslora", "alpha_pattern") if said.get(key)), None)
