"""Tiny seeded checkpoints of every family, made by `transformers` from its own configurations.

Weights are scaled up so that greedy text wanders and near-ties are rare.
"""

from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    Olmo2Config,
    Phi3Config,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from tests.fakes.byte_tokenizer import VOCAB_SIZE, write_byte_tokenizer

SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 256,
    "eos_token_id": 257,
    "pad_token_id": 0,
}
EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2}
WINDOW = 24


def families() -> dict[str, PretrainedConfig]:
    """A configuration of each family, with what sets it apart turned on."""
    return {
        "llama": LlamaConfig(**SIZES),
        "mistral": MistralConfig(**SIZES, sliding_window=WINDOW),
        "qwen2": Qwen2Config(**SIZES),
        "qwen3": Qwen3Config(**SIZES, head_dim=32),
        "gemma2": Gemma2Config(
            **SIZES, head_dim=32, query_pre_attn_scalar=16, sliding_window=WINDOW
        ),
        "gemma3": Gemma3TextConfig(
            **SIZES,
            head_dim=32,
            query_pre_attn_scalar=16,
            sliding_window=WINDOW,
            layer_types=["sliding_attention", "full_attention"] * 2,
        ),
        "mixtral": MixtralConfig(**SIZES, **EXPERTS, num_local_experts=5),
        "qwen3_moe": Qwen3MoeConfig(
            **SIZES,
            **EXPERTS,
            head_dim=32,
            num_experts=6,
            moe_intermediate_size=48,
            norm_topk_prob=True,
        ),
        # In the modelling code of the library.
        "cohere": CohereConfig(**SIZES),
        "granite": GraniteConfig(
            **SIZES,
            embedding_multiplier=3.0,
            logits_scaling=2.0,
            residual_multiplier=0.7,
            attention_multiplier=0.3,
        ),
        "olmo2": Olmo2Config(**SIZES),
        "phi3": Phi3Config(**SIZES),
    }


def write_tiny_family(folder: Path, name: str) -> Path:
    """Write the checkpoint of a family and return its folder."""
    return write_checkpoint(folder, families()[name])


def write_checkpoint(folder: Path, config: PretrainedConfig, *, seed: int = 0) -> Path:
    """Write a seeded checkpoint of this configuration and return its folder."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    is_gemma = config.model_type.startswith("gemma")
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
            elif "embed" not in parameter_name:
                parameter.normal_(std=0.12)
            else:
                # Gemma multiplies what is looked up by 8 here.
                parameter.normal_(std=0.06 if is_gemma else 0.5)
    model.save_pretrained(folder)
    write_byte_tokenizer(folder)
    return folder
