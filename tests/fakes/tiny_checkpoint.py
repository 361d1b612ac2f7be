"""Writes a seeded, tiny model folder: safetensors, config, byte tokenizer, chat template; no downloads.

The scale of the weights is chosen so that greedy text wanders instead of repeating one token and
near-ties between the two best tokens are rare. `transformers` reads the folder as any other.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.fakes.byte_tokenizer import BOS_ID, EOS_ID, VOCAB_SIZE, write_byte_tokenizer

LLAMA3_SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def write_tiny_llama(
    folder: Path,
    *,
    seed: int = 0,
    num_layers: int = 6,
    hidden: int = 64,
    intermediate: int = 128,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int | None = None,
    vocab: int = VOCAB_SIZE,
    tied: bool = True,
    rope: str = "default",
    bias: bool = False,
    num_shards: int = 1,
    max_position_embeddings: int = 2048,
    dtype: torch.dtype = torch.float32,
) -> Path:
    """Write a LlamaForCausalLM into folder, made if missing, and return the folder.

    rope is "default" or "llama3"; bias gives attention and MLP biases; num_shards > 1 writes that
    many safetensors files and an index.
    """
    folder.mkdir(parents=True, exist_ok=True)
    head_size = head_dim or hidden // heads
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": str(dtype).removeprefix("torch."),
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": num_layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_size,
        "hidden_act": "silu",
        "max_position_embeddings": max_position_embeddings,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "rope_scaling": LLAMA3_SCALING if rope == "llama3" else None,
        "tie_word_embeddings": tied,
        "attention_bias": bias,
        "mlp_bias": bias,
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    generation = {"bos_token_id": BOS_ID, "eos_token_id": EOS_ID}
    (folder / "generation_config.json").write_text(json.dumps(generation))
    write_byte_tokenizer(folder)
    tensors = _llama_tensors(
        torch.Generator().manual_seed(seed),
        num_layers=num_layers,
        hidden=hidden,
        intermediate=intermediate,
        query_size=heads * head_size,
        kv_size=kv_heads * head_size,
        vocab=vocab,
        tied=tied,
        bias=bias,
    )
    save_tensors(
        folder, {name: tensor.to(dtype) for name, tensor in tensors.items()}, num_shards=num_shards
    )
    return folder


def save_tensors(folder: Path, tensors: dict[str, Tensor], *, num_shards: int = 1) -> None:
    """Write model.safetensors, or num_shards files with model.safetensors.index.json."""
    if num_shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return
    names = list(tensors)
    weight_map: dict[str, str] = {}
    for shard in range(num_shards):
        file = f"model-{shard + 1:05d}-of-{num_shards:05d}.safetensors"
        mine = names[shard::num_shards]
        save_file({name: tensors[name] for name in mine}, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(mine, file)
    index = {
        "metadata": {"total_size": sum(tensor.nbytes for tensor in tensors.values())},
        "weight_map": weight_map,
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))


def _llama_tensors(
    generator: torch.Generator,
    *,
    num_layers: int,
    hidden: int,
    intermediate: int,
    query_size: int,
    kv_size: int,
    vocab: int,
    tied: bool,
    bias: bool,
) -> dict[str, Tensor]:
    def normal(*shape: int, std: float) -> Tensor:
        return torch.randn(shape, generator=generator) * std

    tensors: dict[str, Tensor] = {}

    def linear(name: str, num_outputs: int, num_inputs: int, *, gain: float) -> None:
        tensors[f"{name}.weight"] = normal(num_outputs, num_inputs, std=gain * num_inputs**-0.5)
        if bias:
            tensors[f"{name}.bias"] = normal(num_outputs, std=0.1)

    tensors["model.embed_tokens.weight"] = normal(vocab, hidden, std=0.4)
    for index in range(num_layers):
        layer = f"model.layers.{index}"
        # Queries and keys above unit size make attention pick tokens, so that the prompt matters.
        linear(f"{layer}.self_attn.q_proj", query_size, hidden, gain=1.5)
        linear(f"{layer}.self_attn.k_proj", kv_size, hidden, gain=1.5)
        linear(f"{layer}.self_attn.v_proj", kv_size, hidden, gain=1.0)
        linear(f"{layer}.self_attn.o_proj", hidden, query_size, gain=1.0)
        linear(f"{layer}.mlp.gate_proj", intermediate, hidden, gain=1.0)
        linear(f"{layer}.mlp.up_proj", intermediate, hidden, gain=1.0)
        linear(f"{layer}.mlp.down_proj", hidden, intermediate, gain=1.5)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{layer}.{norm}.weight"] = 1.0 + normal(hidden, std=0.1)
    tensors["model.norm.weight"] = 1.0 + normal(hidden, std=0.1)
    if not tied:
        tensors["lm_head.weight"] = normal(vocab, hidden, std=0.4)
    return tensors
