"""Tiny configurations of model families, for make.py: a class of `transformers` and the values that make it small.

Sizes are multiples of 32: of others llama.cpp takes other kernels than of the real models.
"""

from __future__ import annotations

from typing import Any

_SMALL = {"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
_NARROW = _SMALL | {"intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
_TWO_LAYERS = {"num_hidden_layers": 2, "max_position_embeddings": 4096}
_TIED = {"tie_word_embeddings": True, "max_position_embeddings": 4096}
_ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0}}
_SSM = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 1, "mamba_chunk_size": 16}
_NEMOTRON = (
    _SMALL
    | {"head_dim": 16, "intermediate_size": 32, "max_position_embeddings": 4096}
    | {"mamba_num_heads": 4, "mamba_head_dim": 16, "ssm_state_size": 16, "n_groups": 2, "chunk_size": 16}
    # transformers raises a time step to time_step_min and llama.cpp does not: no step is as small as this.
    | {"time_step_min": 1e-6, "time_step_floor": 0.01}
)

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", _SMALL | _TWO_LAYERS),
    "qwen2": ("Qwen2Config", _SMALL | _TIED | _TWO_LAYERS),
    "qwen3": ("Qwen3Config", _SMALL | _TIED | _TWO_LAYERS | {"head_dim": 32}),
    "phi3": ("Phi3Config", _SMALL | _TIED | _TWO_LAYERS),
    "olmo2": ("Olmo2Config", _SMALL | _TWO_LAYERS),
    "qwen3moe": (
        "Qwen3MoeConfig",
        _SMALL
        | _TIED
        | {"head_dim": 16, "num_hidden_layers": 2, "num_experts": 4, "num_experts_per_tok": 2}
        | {"moe_intermediate_size": 32, "norm_topk_prob": True},
    ),
    "deepseek2": (  # keys and values as one latent vector a token (MLA)
        "DeepseekV2Config",
        _TIED
        | _TWO_LAYERS
        | {"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2}
        | {"q_lora_rank": 32, "kv_lora_rank": 32, "qk_nope_head_dim": 32, "qk_rope_head_dim": 32, "v_head_dim": 32}
        | {"first_k_dense_replace": 1, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1}
        | {"moe_intermediate_size": 32},
    ),
    "gemma3": (  # the sixth layer is the first without a window
        "Gemma3TextConfig",
        _NARROW | _TIED | {"query_pre_attn_scalar": 16, "num_hidden_layers": 6, "sliding_window": 32},
    ),
    "gpt-oss": (
        "GptOssConfig",
        _NARROW | _TWO_LAYERS | _ROPE | {"num_local_experts": 3, "num_experts_per_tok": 2, "sliding_window": 32},
    ),
    "lfm2": (
        "Lfm2Config",
        _SMALL
        | _TIED
        | {"num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"]}
        | {"block_auto_adjust_ff_dim": False},
    ),
    "qwen3_5": (
        "Qwen3_5TextConfig",
        _NARROW
        | _TIED
        | {"num_hidden_layers": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16}
        | {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "partial_rotary_factor": 0.25}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [1, 1, 0]}},
    ),
    "falcon_h1": (
        "FalconH1Config",
        _SMALL | _TIED | _SSM | {"head_dim": 16, "num_hidden_layers": 2, "mamba_d_ssm": 64},
    ),
    "granite_hybrid": (
        "GraniteMoeHybridConfig",
        _SMALL
        | _TIED
        | _SSM
        | {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}
        | {"mamba_expand": 2, "mamba_n_heads": 8}  # llama.cpp wants mamba_expand 2
        | {"intermediate_size": 32, "shared_intermediate_size": 32, "num_local_experts": 3, "num_experts_per_tok": 2}
        | {"embedding_multiplier": 12.0, "residual_multiplier": 0.5, "attention_multiplier": 0.25}
        | {"logits_scaling": 2.0},
    ),
    "nemotron_h": (
        "NemotronHConfig",
        _NEMOTRON | {"layers_block_type": ["linear_attention", "mlp", "full_attention", "linear_attention"]},
    ),
    "nemotron_h_moe": (
        "NemotronHConfig",
        _NEMOTRON
        | {"layers_block_type": ["linear_attention", "moe", "full_attention"]}
        | {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
        | {"moe_shared_expert_intermediate_size": 32},
    ),
    "jamba": (  # the second of two layers has attention and experts
        "JambaConfig",
        _SMALL
        | _TIED
        | {"intermediate_size": 32, "num_hidden_layers": 2, "attn_layer_period": 2, "attn_layer_offset": 1}
        | {"num_experts": 4, "num_experts_per_tok": 2, "expert_layer_period": 2, "expert_layer_offset": 1}
        | {"mamba_expand": 2, "mamba_d_state": 16, "mamba_dt_rank": 4},  # llama.cpp wants mamba_expand 2
    ),
    "mamba": ("MambaConfig", {"hidden_size": 64, "num_hidden_layers": 2, "state_size": 8}),
    "mamba2": (
        "Mamba2Config",
        {"hidden_size": 64, "num_hidden_layers": 2, "state_size": 16, "num_heads": 8, "head_dim": 16, "n_groups": 2}
        | {"chunk_size": 16, "tie_word_embeddings": True},
    ),
}

EDITS: dict[str, dict[str, Any]] = {
    "granite_hybrid": {"layer_types": ["mamba", "attention"]},
    "nemotron_h": {
        "hybrid_override_pattern": "M-*M",
        **dict.fromkeys(("num_experts_per_tok", "n_routed_experts", "num_local_experts", "n_group", "topk_group")),
    },
}
"""Values of the configuration as the published models have them, where `transformers` has others that the converter
does not know; None: the key goes."""
