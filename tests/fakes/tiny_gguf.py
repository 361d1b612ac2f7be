"""Writes a tiny Llama as a GGUF file, as llama.cpp's converter would of the same checkpoint."""

from pathlib import Path

import numpy as np
from gguf import GGUFWriter, TokenType
from safetensors.numpy import load_file

from tests.fakes.byte_tokenizer import (
    BOS,
    BOS_ID,
    CHAT_TEMPLATE,
    EOS,
    EOS_ID,
    TURN_END,
    TURN_START,
    byte_characters,
)

MERGED = ("he", "12")
"""The tokens of two bytes, which the last ids stand for."""
VOCAB_SIZE = 262
HEADS, KV_HEADS = 4, 2

NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "post_attention_layernorm": "ffn_norm",
    "input_layernorm": "attn_norm",
    "model.layers.": "blk.",
}


def write_tiny_gguf(
    file: Path,
    checkpoint: Path,
    *,
    num_layers: int,
    architecture: str = "llama",
    pre_tokenizer: str = "gpt-2",
    adds_bos: bool = False,
) -> Path:
    """Write the float32 checkpoint of a `write_tiny_llama` with VOCAB_SIZE tokens; returns the file."""
    writer = GGUFWriter(file, architecture)
    writer.add_context_length(2048)
    writer.add_block_count(num_layers)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(128)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(64 // HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCAB_SIZE)
    specials = [BOS, EOS, TURN_START, TURN_END]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre_tokenizer)
    writer.add_token_list([*byte_characters(), *specials, *MERGED])
    writer.add_token_types(
        [TokenType.NORMAL] * 256 + [TokenType.CONTROL] * 4 + [TokenType.NORMAL] * 2
    )
    writer.add_token_merges([" ".join(token) for token in MERGED])
    writer.add_bos_token_id(BOS_ID)
    writer.add_eos_token_id(EOS_ID)
    writer.add_add_bos_token(adds_bos)
    writer.add_chat_template(CHAT_TEMPLATE)
    for name, tensor in load_file(checkpoint / "model.safetensors").items():
        writer.add_tensor(_gguf_name(name), _gguf_rows(name, tensor))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _gguf_name(name: str) -> str:
    for old, new in NAMES.items():
        name = name.replace(old, new)
    return name


def _gguf_rows(name: str, tensor: np.ndarray) -> np.ndarray:
    """Rows of queries and keys stand in the order of llama.cpp's rotation: pairs side by side."""
    num_heads = {"q_proj": HEADS, "k_proj": KV_HEADS}.get(name.split(".")[-2])
    if num_heads is None:
        return tensor
    halves = tensor.reshape(num_heads, 2, -1, tensor.shape[-1])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(tensor.shape))
