"""config.json -> ModelSpec: defaults, both spellings of rope, and what is refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest

from common.errors import ModelError
from worker_service.models.model_spec import Llama3Scaling, parse_model_spec, read_model_spec
from worker_service.models.registry import load_spec

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "max_position_embeddings": 512,
}
LLAMA3 = {
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def test_defaults_of_absent_keys() -> None:
    """Absent keys mean what transformers takes them to mean for Llama."""
    spec = parse_model_spec(CONFIG)
    assert (spec.num_kv_heads, spec.head_size) == (6, 8)
    assert (spec.rms_norm_eps, spec.rope.theta, spec.rope.scaling) == (1e-6, 10000.0, None)
    assert (spec.has_tied_head, spec.has_attention_bias, spec.has_mlp_bias) == (False,) * 3
    assert spec.dtype == "float32"


@pytest.mark.parametrize(
    "keys",
    [
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
        {"rope_theta": 5e5, "rope_scaling": {"type": "llama3", **LLAMA3}},
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3}},
    ],
)
def test_spellings_of_llama3_rope(keys: dict[str, Any]) -> None:
    """Older and newer configs say the same."""
    rope = parse_model_spec(CONFIG | keys).rope
    assert rope.theta == 5e5
    assert rope.scaling == Llama3Scaling(
        factor=32.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=8192,
    )


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"vocab_size": None}, "vocab_size must be a positive integer"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be a positive integer, not 0"),
        ({"architectures": []}, "must name one architecture"),
        ({"num_key_value_heads": 4}, "6 attention heads cannot share 4 key-value heads"),
        ({"head_dim": 7}, "head_dim must be even"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        ({"quantization_config": {"bits": 4}}, "quantized checkpoints are not supported"),
        ({"rope_scaling": {"type": "yarn"}}, "rope scaling 'yarn' is not supported"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "llama3 rope scaling lacks factor"),
        ({"partial_rotary_factor": 0.5}, r"partial_rotary_factor 0\.5 is not supported"),
    ],
)
def test_unsupported_is_named(keys: dict[str, Any], message: str) -> None:
    """What cannot be computed rightly is refused by name instead of computed wrongly."""
    with pytest.raises(ModelError, match=message):
        parse_model_spec(CONFIG | keys)


def test_unreadable_config_is_named(tmp_path: Path) -> None:
    """A folder without config.json, or with a broken one, is named."""
    with pytest.raises(ModelError, match=r"config\.json cannot be read"):
        read_model_spec(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config\.json is not valid JSON"):
        read_model_spec(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ModelError, match="must hold a JSON object"):
        read_model_spec(tmp_path)


@pytest.mark.parametrize("kind", [{}, {"model_type": "nothing"}])
def test_unknown_architecture_is_named(tmp_path: Path, kind: dict[str, str]) -> None:
    """A model that neither we nor `transformers` know is refused by its name."""
    config = CONFIG | {"architectures": ["MadeUpForCausalLM"]} | kind
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="MadeUpForCausalLM is not supported: neither here nor"):
        load_spec(tmp_path)
