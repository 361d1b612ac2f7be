"""Architecture name of a config.json -> the module of its family, imported on demand."""

from importlib import import_module
from typing import Protocol, cast

from common.errors import ModelError
from worker_service.models.decoder import DecoderModel, StageSlice
from worker_service.models.model_spec import ModelSpec
from worker_service.weights.rules import WeightRules

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
    module = MODULE_BY_ARCHITECTURE.get(spec.architecture)
    if module is None:
        known = ", ".join(sorted(MODULE_BY_ARCHITECTURE))
        raise ModelError(f"architecture {spec.architecture} is not supported; known are {known}")
    return cast(Architecture, import_module(module))
