"""The checkpoint names of a layer's experts: router, and each expert's gate, up and down projection."""

from worker_service.models.model_spec import ExpertsSpec, ModelSpec
from worker_service.weights.rules import Pack, Source

_NAMES_BY_ARCHITECTURE = {
    "MixtralForCausalLM": ("block_sparse_moe", ("w1", "w3"), "w2"),
    "Qwen3MoeForCausalLM": ("mlp", ("gate_proj", "up_proj"), "down_proj"),
}


def expert_packs(spec: ModelSpec, experts: ExpertsSpec, *, source: str, target: str) -> list[Pack]:
    """The packs of one layer."""
    block, gate_up, down = _NAMES_BY_ARCHITECTURE[spec.architecture]
    hidden, inner = spec.hidden_size, experts.intermediate_size
    each = [f"{source}.{block}.experts.{index}" for index in range(experts.num_experts)]
    router = Source(name=f"{source}.{block}.gate.weight", shape=(experts.num_experts, hidden))
    return [
        Pack(parameter=f"{target}.mlp.router", sources=(router,)),
        Pack(
            parameter=f"{target}.mlp.gate_up",
            sources=tuple(
                Source(name=f"{expert}.{name}.weight", shape=(inner, hidden))
                for expert in each
                for name in gate_up
            ),
        ),
        Pack(
            parameter=f"{target}.mlp.down",
            sources=tuple(
                Source(name=f"{expert}.{down}.weight", shape=(hidden, inner)) for expert in each
            ),
        ),
    ]
