"""Architecture name of a config.json -> the module of its family, imported on demand."""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol, cast

from common.errors import ModelError
from worker_service.models.decoder import DecoderModel, StageSlice
from worker_service.models.model_spec import (
    ModelSpec,
    architecture_of,
    parse_model_spec,
    read_config,
)
from worker_service.weights.rules import WeightRules

FALLBACK = "worker_service.models.transformers_model"
_LLAMA = "worker_service.models.llama"
MODULE_BY_ARCHITECTURE = {
    "LlamaForCausalLM": _LLAMA,
    "MistralForCausalLM": _LLAMA,
    "Qwen2ForCausalLM": _LLAMA,
    "Qwen3ForCausalLM": _LLAMA,
    "Gemma2ForCausalLM": _LLAMA,
    "Gemma3ForCausalLM": _LLAMA,
    "MixtralForCausalLM": _LLAMA,
    "Qwen3MoeForCausalLM": _LLAMA,
}


class Architecture(Protocol):
    """What a family's module offers: its model class and the rules of its checkpoints."""

    MODEL: type[DecoderModel]

    def weight_rules(self, spec: ModelSpec, stage: StageSlice) -> WeightRules:
        """The rules for one stage."""
        ...


def load_architecture(spec: ModelSpec) -> Architecture:
    """Import the family; raises ModelError naming an architecture that has none."""
    module = MODULE_BY_ARCHITECTURE.get(spec.architecture, FALLBACK)
    return cast(Architecture, import_module(module))


def load_spec(folder: Path) -> ModelSpec:
    """What the folder's config.json says; raises ModelError for a model that nobody knows."""
    config = read_config(folder)
    if architecture_of(config) in MODULE_BY_ARCHITECTURE:
        return parse_model_spec(config)
    if find_spec("transformers") is None:
        known = ", ".join(sorted(MODULE_BY_ARCHITECTURE))
        raise ModelError(
            f"architecture {architecture_of(config)} is not supported without the package "
            f"transformers; known are {known}"
        )
    return import_module(FALLBACK).read_spec(config)
