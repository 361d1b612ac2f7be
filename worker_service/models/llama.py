"""The checkpoint names of Llama, and of the families that name theirs like it, on one decoder stack."""

from worker_service.models.decoder import DecoderModel, StageSlice
from worker_service.models.expert_rules import expert_packs
from worker_service.models.model_spec import ModelSpec
from worker_service.weights.rules import (
    REPLICATED,
    Pack,
    Shard,
    Source,
    Split,
    SplitRows,
    WeightRules,
)

MODEL = DecoderModel

EMBEDDING, HEAD, NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"

# Old checkpoints store rotary frequencies, which are computed here. A checkpoint whose config ties
# the head may store it once more; the embedding is then the one that counts.
_ALWAYS_IGNORED = ("rotary_emb.inv_freq",)
_IGNORED_WHEN_TIED = (*_ALWAYS_IGNORED, HEAD)


def weight_rules(spec: ModelSpec, stage: StageSlice) -> WeightRules:
    """The rules for one stage of a Llama checkpoint."""
    whole = StageSlice(layers=range(spec.num_layers))
    return WeightRules(
        packs=_packs(spec, stage),
        claimed=frozenset(source.name for pack in _packs(spec, whole) for source in pack.sources),
        ignored=_IGNORED_WHEN_TIED if spec.has_tied_head else _ALWAYS_IGNORED,
    )


def _packs(spec: ModelSpec, stage: StageSlice) -> tuple[Pack, ...]:
    packs: list[Pack] = []
    table = (spec.vocab_size, spec.hidden_size)
    if stage.is_first:
        packs.append(_single("embedding.weight", EMBEDDING, table, SplitRows()))
    for index, layer in enumerate(stage.layers):
        packs += _layer_packs(spec, source=f"model.layers.{layer}", target=f"layers.{index}")
    if stage.is_last:
        packs.append(_single("norm.weight", NORM, (spec.hidden_size,)))
        if not spec.has_tied_head:
            packs.append(_single("head.weight", HEAD, table, SplitRows()))
        elif not stage.is_first:
            packs.append(_single("head.weight", EMBEDDING, table, SplitRows()))
    return tuple(packs)


def _layer_packs(spec: ModelSpec, *, source: str, target: str) -> list[Pack]:
    hidden, inner = spec.hidden_size, spec.intermediate_size
    queries, keys = spec.num_heads * spec.head_size, spec.num_kv_heads * spec.head_size
    attention, mlp = f"{source}.self_attn", f"{source}.mlp"
    by_query_head = Split(dim=0, units=spec.num_heads)
    by_key_head = Split(dim=0, units=spec.num_kv_heads)
    by_column = Split(dim=0, units=inner)

    qkv = [
        (f"{attention}.q_proj", queries, by_query_head),
        (f"{attention}.k_proj", keys, by_key_head),
        (f"{attention}.v_proj", keys, by_key_head),
    ]
    gate_up = [(f"{mlp}.gate_proj", inner, by_column), (f"{mlp}.up_proj", inner, by_column)]
    output, down = f"{attention}.o_proj", f"{mlp}.down_proj"
    packs = [
        *(
            _single(f"{target}.{norm}.weight", f"{source}.{name}.weight", (hidden,))
            for norm, name in _norm_names(spec).items()
        ),
        _stacked_weights(f"{target}.attention.qkv", qkv, num_inputs=hidden),
        _stacked_weights(f"{target}.mlp.gate_up", gate_up, num_inputs=hidden),
        _single(
            f"{target}.attention.output.weight",
            f"{output}.weight",
            (hidden, queries),
            Split(dim=1, units=spec.num_heads),
        ),
        _single(
            f"{target}.mlp.down.weight",
            f"{down}.weight",
            (hidden, inner),
            Split(dim=1, units=inner),
        ),
    ]
    if spec.has_attention_bias:
        packs.append(_stacked_biases(f"{target}.attention.qkv", qkv))
    if spec.has_output_bias:
        packs.append(_single(f"{target}.attention.output.bias", f"{output}.bias", (hidden,)))
    if spec.has_qk_norm:
        packs += [
            _single(
                f"{target}.attention.{norm}.weight", f"{attention}.{norm}.weight", (spec.head_size,)
            )
            for norm in ("q_norm", "k_norm")
        ]
    if spec.experts is not None:
        packs = [pack for pack in packs if not pack.parameter.startswith(f"{target}.mlp.")]
        packs += expert_packs(spec, spec.experts, source=source, target=target)
    if spec.has_mlp_bias:
        packs.append(_stacked_biases(f"{target}.mlp.gate_up", gate_up))
        packs.append(_single(f"{target}.mlp.down.bias", f"{down}.bias", (hidden,)))
    return packs


def _norm_names(spec: ModelSpec) -> dict[str, str]:
    """A layer's norms, ours by theirs."""
    names = {"attention_norm": "input_layernorm"}
    if not spec.has_post_norms:
        return names | {"mlp_norm": "post_attention_layernorm"}
    return names | {
        "attention_post_norm": "post_attention_layernorm",
        "mlp_norm": "pre_feedforward_layernorm",
        "mlp_post_norm": "post_feedforward_layernorm",
    }


def _single(parameter: str, source: str, shape: tuple[int, ...], shard: Shard = REPLICATED) -> Pack:
    return Pack(parameter=parameter, sources=(Source(name=source, shape=shape, shard=shard),))


def _stacked_weights(layer: str, sources: list[tuple[str, int, Split]], *, num_inputs: int) -> Pack:
    """The packed weight of linear layers that share their input: (name, outputs, split) each."""
    return Pack(
        parameter=f"{layer}.weight",
        sources=tuple(
            Source(name=f"{name}.weight", shape=(num_outputs, num_inputs), shard=split)
            for name, num_outputs, split in sources
        ),
    )


def _stacked_biases(layer: str, sources: list[tuple[str, int, Split]]) -> Pack:
    return Pack(
        parameter=f"{layer}.bias",
        sources=tuple(
            Source(name=f"{name}.bias", shape=(num_outputs,), shard=split)
            for name, num_outputs, split in sources
        ),
    )
