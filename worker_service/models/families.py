"""What sets a family apart from Llama, read from its name and its config.json as ModelSpec's switches."""

from collections.abc import Callable
from typing import Any

from common.errors import ModelError

Config = dict[str, Any]
Switches = dict[str, Any]

ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu"}


def family_switches(architecture: str, config: Config) -> Switches:
    """The switches of an architecture; one that is not known here is like Llama."""
    biases = config.get("attention_bias", False)
    switches: Switches = {
        "has_attention_bias": biases,
        "has_output_bias": biases,
        "windows": windows(config),
    }
    family = _FAMILIES.get(architecture)
    return switches if family is None else switches | family(config)


def windows(config: Config) -> tuple[int, ...]:
    """Each layer's window; configs name it, and say by layer or by a switch where it holds."""
    window = config.get("sliding_window")
    # Families that name a window without using it say so by a switch.
    if not window or not config.get("use_sliding_window", True):
        return ()
    num_layers = config.get("num_hidden_layers", 0)
    kinds = config.get("layer_types") or ["sliding_attention"] * num_layers
    if len(kinds) != num_layers:
        raise ModelError(f"config.json: {len(kinds)} layer_types for {num_layers} layers")
    return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)


def refuse_unsupported(config: Config) -> None:
    """Raise ModelError for what would make the weights mean something else."""
    if config.get("quantization_config"):
        raise ModelError("config.json: quantized checkpoints are not supported")
    activation = config.get("hidden_activation") or config.get("hidden_act") or "silu"
    if activation not in ACTIVATIONS:
        raise ModelError(f"config.json: hidden_act {activation!r} is not supported")


def _qwen2(config: Config) -> Switches:
    del config
    return {"has_attention_bias": True, "has_output_bias": False}


def _qwen3(config: Config) -> Switches:
    del config
    return {"has_qk_norm": True}


def _gemma(config: Config) -> Switches:
    """What Gemma 2 and 3 have in common."""
    hidden_size, head_size = config["hidden_size"], config["head_dim"]
    return {
        "has_unit_offset": True,
        "has_post_norms": True,
        "activation": "gelu",
        "embedding_scale": hidden_size**0.5,
        "query_scale": (head_size / config.get("query_pre_attn_scalar", head_size)) ** 0.5,
        "has_tied_head": config.get("tie_word_embeddings", True),
    }


def _gemma2(config: Config) -> Switches:
    return _gemma(config) | {
        "attention_soft_cap": config.get("attn_logit_softcapping") or 0.0,
        "final_soft_cap": config.get("final_logit_softcapping") or 0.0,
    }


def _gemma3(config: Config) -> Switches:
    # Loaded late: the specification reads its own parts through this file.
    from worker_service.models.model_spec import parse_rope

    rope = (config.get("rope_parameters") or {}).get("sliding_attention")
    if rope is None:
        rope = {"rope_theta": config.get("rope_local_base_freq", 10000.0)}
    return _gemma(config) | {"has_qk_norm": True, "local_rope": parse_rope(rope, {})}


def _mixtral(config: Config) -> Switches:
    return {
        "experts": _experts(config, "num_local_experts", "intermediate_size", is_normalised=True)
    }


def _qwen3_moe(config: Config) -> Switches:
    if config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1:
        raise ModelError("config.json: layers without experts among those with are not supported")
    is_normalised = config.get("norm_topk_prob", False)
    experts = _experts(config, "num_experts", "moe_intermediate_size", is_normalised=is_normalised)
    return _qwen3(config) | {"experts": experts}


def _experts(config: Config, count: str, inner: str, *, is_normalised: bool) -> Any:
    from worker_service.models.model_spec import ExpertsSpec

    return ExpertsSpec(
        num_experts=config[count] if count in config else config["num_local_experts"],
        num_per_token=config["num_experts_per_tok"],
        intermediate_size=config[inner],
        is_normalised=is_normalised,
    )


_FAMILIES: dict[str, Callable[[Config], Switches]] = {
    "Qwen2ForCausalLM": _qwen2,
    "Qwen3ForCausalLM": _qwen3,
    "Gemma2ForCausalLM": _gemma2,
    "Gemma3ForCausalLM": _gemma3,
    "MixtralForCausalLM": _mixtral,
    "Qwen3MoeForCausalLM": _qwen3_moe,
}
