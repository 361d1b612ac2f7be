"""config.json -> ModelSpec, our own frozen description of a decoder model."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import ModelError
from worker_service.models.families import family_switches, refuse_unsupported


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Scaling:
    """How Llama 3.1 stretches rotary frequencies; original_max_position_embeddings in tokens."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeSpec:
    """Rotary embedding: base wavelength and scaling (None: the default one)."""

    theta: float
    scaling: Llama3Scaling | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsSpec:
    """A mixture of experts in place of the MLP.

    is_normalised: the weights of a token's experts add up to 1.
    """

    num_experts: int
    num_per_token: int
    intermediate_size: int
    is_normalised: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """Sizes and switches of a decoder model; `dtype` is what the checkpoint says it holds.

    has_attention_bias: of the query, key and value projections. has_qk_norm: queries and keys are
    normalised head by head before they turn. has_unit_offset: norms multiply by one plus their
    weight. has_post_norms: what attention and MLP give is normalised before it is added. activation:
    "silu" or "gelu", the gate of the MLP. query_scale, embedding_scale: factors of queries and of
    embedded tokens. attention_soft_cap and final_soft_cap bound scores and logits, 0: nothing.
    windows: each layer's sliding window in tokens, 0 for none; empty: no layer has one. local_rope:
    the rotation of layers with a window, None: as the others'. experts None: one MLP a layer.
    library_config: the items of config.json, where `transformers` runs the model.
    """

    architecture: str
    dtype: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope: RopeSpec
    has_tied_head: bool
    has_attention_bias: bool
    has_mlp_bias: bool
    has_output_bias: bool = False
    has_qk_norm: bool = False
    has_unit_offset: bool = False
    has_post_norms: bool = False
    activation: str = "silu"
    query_scale: float = 1.0
    embedding_scale: float = 1.0
    attention_soft_cap: float = 0.0
    final_soft_cap: float = 0.0
    windows: tuple[int, ...] = ()
    local_rope: RopeSpec | None = None
    experts: ExpertsSpec | None = None
    library_config: tuple[tuple[str, Any], ...] = ()

    @property
    def is_plain(self) -> bool:
        """Whether its layers are Llama's, but for their sizes and biases."""
        return not (
            self.has_qk_norm
            or self.has_unit_offset
            or self.has_post_norms
            or self.experts
            or any(self.windows)
            or self.attention_soft_cap
        ) and (self.activation, self.query_scale) == ("silu", 1.0)

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ModelError(
                f"config.json: {self.num_heads} attention heads cannot share "
                f"{self.num_kv_heads} key-value heads evenly"
            )
        if self.head_size % 2:
            raise ModelError(f"config.json: head_dim must be even, not {self.head_size}")


def read_model_spec(folder: Path) -> ModelSpec:
    """Read folder/config.json; raises ModelError naming the key that is missing or not supported."""
    return parse_model_spec(read_config(folder))


def parse_model_spec(config: dict[str, Any]) -> ModelSpec:
    """Make a ModelSpec of the contents of a config.json; raises ModelError as read_model_spec does."""
    refuse_unsupported(config)
    switches = family_switches(architecture_of(config), config)
    num_heads = _required(config, "num_attention_heads")
    hidden_size = _required(config, "hidden_size")
    return ModelSpec(
        architecture=architecture_of(config),
        dtype=config.get("dtype") or config.get("torch_dtype") or "float32",
        vocab_size=_required(config, "vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=_required(config, "intermediate_size"),
        num_layers=_required(config, "num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=config.get("num_key_value_heads") or num_heads,
        head_size=config.get("head_dim") or hidden_size // num_heads,
        max_position_embeddings=_required(config, "max_position_embeddings"),
        rms_norm_eps=config.get("rms_norm_eps", 1e-6),
        rope=_rope_spec(config),
        has_mlp_bias=config.get("mlp_bias", False),
        **({"has_tied_head": config.get("tie_word_embeddings", False)} | switches),
    )


def read_config(folder: Path) -> dict[str, Any]:
    """The contents of folder/config.json; raises ModelError when it cannot be read."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ModelError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(config, dict):
        raise ModelError(f"{path} must hold a JSON object")
    return config


def architecture_of(config: dict[str, Any]) -> str:
    """The one architecture that a config.json names; raises ModelError when there is none."""
    names = config.get("architectures") or []
    if len(names) != 1:
        raise ModelError(f"config.json must name one architecture, not {names}")
    return names[0]


def _required(config: dict[str, Any], key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or value < 1:
        raise ModelError(f"config.json: {key} must be a positive integer, not {value!r}")
    return value


def _rope_spec(config: dict[str, Any]) -> RopeSpec:
    """Read the newer rope_parameters, or the older rope_theta and rope_scaling."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return parse_rope(rope.get("full_attention", rope), config)


def parse_rope(rope: dict[str, Any], config: dict[str, Any]) -> RopeSpec:
    """One rotation; what it leaves out stands in the config itself."""
    theta = float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0)
    partial = rope.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    if partial != 1.0:
        raise ModelError(f"config.json: partial_rotary_factor {partial} is not supported")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return RopeSpec(theta=theta)
    if kind == "llama3":
        return RopeSpec(theta=theta, scaling=_llama3_scaling(rope))
    raise ModelError(f"config.json: rope scaling {kind!r} is not supported")


def _llama3_scaling(rope: dict[str, Any]) -> Llama3Scaling:
    try:
        return Llama3Scaling(
            factor=float(rope["factor"]),
            low_freq_factor=float(rope["low_freq_factor"]),
            high_freq_factor=float(rope["high_freq_factor"]),
            original_max_position_embeddings=int(rope["original_max_position_embeddings"]),
        )
    except KeyError as error:
        raise ModelError(f"config.json: llama3 rope scaling lacks {error.args[0]}") from error
