"""Any other decoder, in the modelling code of `transformers`, with our attention in place of its own.

The library's decoder runs as it is: what it does before its layers (scaled embeddings, positions) and
behind them (norms, scaled logits) stays its own. A stage holds its layers alone: those of other stages
let everything pass, the one before the first hands out what the previous stage sent, and the one behind
the last keeps what the next stage gets.

Legend: T tokens of the step, S rows that need logits, V vocabulary, D model size, H heads.
"""

from typing import Any, cast

import torch
from accelerate import init_empty_weights
from torch import Tensor, nn
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM, PretrainedConfig
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_outputs import BaseModelOutputWithPast

from common.errors import ModelError
from worker_service.attention.backend import Attend
from worker_service.attention.form import AttentionForm
from worker_service.models.decoder import StageSlice
from worker_service.models.model_spec import ModelSpec, RopeSpec
from worker_service.weights.rules import Pack, Source, WeightRules

ATTENTION = "stepwire"
PREFIX = "causal."


def _attend(
    module: nn.Module,
    query_1HTD: Tensor,
    key_1HTD: Tensor,
    value_1HTD: Tensor,
    attention_mask: object,
    *,
    attend: Attend | None = None,
    first_layer: int = 0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """What the library calls for each layer, whose queries and keys are rotated already."""
    del attention_mask, others
    if attend is None:
        # Found by the profile run, before anything is served.
        raise ModelError(
            f"the modelling code of transformers keeps what it is given from {type(module).__name__}, "
            "so its attention cannot be replaced: this architecture is not supported"
        )
    head_size = query_1HTD.shape[-1]
    if value_1HTD.shape[-1] != head_size:
        raise ModelError(
            f"values have {value_1HTD.shape[-1]} elements a head and keys {head_size}: this "
            "architecture is not supported"
        )
    factor = 1.0 if scaling is None else scaling * head_size**0.5
    query_1HTD = query_1HTD * factor if factor != 1 else query_1HTD
    qkv_THD = torch.cat((query_1HTD[0], key_1HTD[0], value_1HTD[0])).transpose(0, 1).contiguous()
    form = AttentionForm(window=sliding_window or 0, soft_cap=softcap or 0.0)
    layer = cast(int, module.layer_idx) - first_layer
    return attend(layer, qkv_THD, None, form)[None], None


AttentionInterface.register(ATTENTION, _attend)
# What a query may see is ours to say, so no mask is made.
AttentionMaskInterface.register(ATTENTION, lambda *args, **kwargs: None)


class _Pass(nn.Module):
    """A layer of another stage."""

    def forward(self, hidden: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Let everything pass."""
        return hidden


class _Nothing(nn.Module):
    """A part that another stage has computed."""

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Add nothing."""
        return torch.zeros(())


class _Received(nn.Module):
    """Stands before a stage's first layer and puts in what the previous stage sent."""

    hidden: Tensor | None = None

    def forward(self, hidden: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Hand it out."""
        del hidden
        assert self.hidden is not None, "it is received before the layers run"
        return self.hidden


class _Kept(nn.Module):
    """Stands behind a stage's last layer and keeps what the next stage gets."""

    hidden: Tensor | None = None

    def forward(self, hidden: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Keep it."""
        self.hidden = hidden
        return hidden


class _Given(nn.Module):
    """Stands for the decoder while the head alone is wanted."""

    hidden: Tensor | None = None

    def forward(self, *args: Any, **kwargs: Any) -> BaseModelOutputWithPast:
        """Answer with what is given."""
        return BaseModelOutputWithPast(last_hidden_state=cast(Any, self.hidden))


class TransformersModel(nn.Module):
    """One stage of a model of the library; parameters undefined until they are loaded."""

    def __init__(
        self, spec: ModelSpec, stage: StageSlice, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        self.spec = spec
        self.stage = stage
        self.native_layers = None
        config = _config(spec)
        with init_empty_weights(include_buffers=False):
            self.causal = AutoModelForCausalLM.from_config(
                config, dtype=dtype, attn_implementation=ATTENTION
            ).eval()
        decoder = self._decoder
        self._received, self._kept = _Received(), _Kept()
        self._cut(decoder)
        is_tied = stage.is_first and stage.is_last and spec.has_tied_head
        if not stage.is_last:
            self.causal.set_output_embeddings(cast(Any, _Pass()))
        _materialize(self.causal, dtype=dtype, device=device)
        if is_tied:
            self.causal.tie_weights()
        self._given = _Given()

    @property
    def _decoder(self) -> Any:
        return self.causal.get_decoder()

    def _cut(self, decoder: Any) -> None:
        """Keep this stage's part of the decoder."""
        stage, layers = self.stage, decoder.layers
        for index in range(len(layers)):
            if index not in stage.layers:
                layers[index] = _Pass()
        if not stage.is_first:
            layers[stage.layers.start - 1] = self._received
        if not stage.is_last:
            layers[stage.layers.stop] = self._kept
        is_behind = False
        for name, child in list(decoder.named_children()):
            if child is layers:
                is_behind = True
            elif not any(True for _ in child.parameters()):
                continue
            elif is_behind and not stage.is_last:
                setattr(decoder, name, _Pass())
            elif not is_behind and not stage.is_first:
                setattr(decoder, name, _Nothing())

    def embed(self, token_ids_T: Tensor) -> Tensor:
        """Hidden states [T, D] of tokens; first stage only."""
        return self._decoder.get_input_embeddings()(token_ids_T)

    def forward(self, hidden_TD: Tensor, positions_T: Tensor, attend: Attend) -> Tensor:
        """Run the stage's layers; behind the last one of all, the norm too; [T, D]."""
        self._received.hidden = hidden_TD[None]
        out = self._decoder(
            inputs_embeds=hidden_TD[None],
            position_ids=positions_T[None],
            use_cache=False,
            attend=attend,
            first_layer=self.stage.layers.start,
        )
        if self.stage.is_last:
            return out.last_hidden_state[0]
        assert self._kept.hidden is not None, "the layers have run"
        return self._kept.hidden[0]

    def compute_logits(self, hidden_SD: Tensor) -> Tensor:
        """The head, and what the model does to its logits; float32 [S, V]; last stage only."""
        self._given.hidden = hidden_SD[None]
        name = self.causal.base_model_prefix
        decoder = getattr(self.causal, name)
        setattr(self.causal, name, self._given)
        try:
            return self.causal(inputs_embeds=hidden_SD[None], use_cache=False).logits[0].float()
        finally:
            setattr(self.causal, name, decoder)


MODEL = TransformersModel


def weight_rules(spec: ModelSpec, stage: StageSlice) -> WeightRules:
    """Every parameter of the stage by the name it has in the library and in the checkpoint."""
    with init_empty_weights():
        whole = AutoModelForCausalLM.from_config(_config(spec))
    shapes = {name: tuple(parameter.shape) for name, parameter in whole.named_parameters()}
    stored = {name: name for name in shapes}
    if spec.has_tied_head:
        # Stored once, under the embedding's name.
        head, embedding = (
            _name_of(whole, cast(nn.Module, part))
            for part in (whole.get_output_embeddings(), whole.get_input_embeddings())
        )
        stored[head] = embedding
        shapes.setdefault(head, shapes[embedding])
    mine = TransformersModel(spec, stage, dtype=torch.float32, device=torch.device("meta"))
    packs: list[Pack] = []
    for parameter in dict(mine.named_parameters()):
        name = parameter.removeprefix(PREFIX)
        source = Source(name=stored[name], shape=shapes[name])
        packs.append(Pack(parameter=parameter, sources=(source,)))
    return WeightRules(
        packs=tuple(packs), claimed=frozenset(shapes), ignored=("rotary_emb.inv_freq",)
    )


def _name_of(model: nn.Module, part: nn.Module) -> str:
    """The name of a part's weight within the model."""
    return next(f"{name}.weight" for name, module in model.named_modules() if module is part)


def read_spec(config: dict[str, Any]) -> ModelSpec:
    """What the worker must know of a model; raises ModelError when the library does not know it."""
    read = _library_config(config)
    num_heads = read.num_attention_heads
    head_size = getattr(read, "head_dim", None) or read.hidden_size // num_heads
    windows = (
        tuple(
            read.sliding_window if kind == "sliding_attention" else 0
            for kind in getattr(read, "layer_types", None) or ()
        )
        if getattr(read, "sliding_window", None)
        else ()
    )
    return ModelSpec(
        architecture=config["architectures"][0],
        dtype=config.get("dtype") or config.get("torch_dtype") or "float32",
        vocab_size=read.vocab_size,
        hidden_size=read.hidden_size,
        intermediate_size=getattr(read, "intermediate_size", None) or 4 * read.hidden_size,
        num_layers=read.num_hidden_layers,
        num_heads=num_heads,
        num_kv_heads=getattr(read, "num_key_value_heads", None) or num_heads,
        head_size=head_size,
        max_position_embeddings=read.max_position_embeddings,
        rms_norm_eps=getattr(read, "rms_norm_eps", 1e-6),
        rope=RopeSpec(theta=10000.0),
        has_tied_head=bool(read.tie_word_embeddings),
        has_attention_bias=False,
        has_mlp_bias=False,
        windows=windows,
        attention_soft_cap=getattr(read, "attn_logit_softcapping", None) or 0.0,
        library_config=tuple(sorted(config.items(), key=lambda item: item[0])),
    )


def _config(spec: ModelSpec) -> PretrainedConfig:
    return _library_config(dict(spec.library_config))


def _library_config(config: dict[str, Any]) -> PretrainedConfig:
    kind = config.get("model_type", "")
    try:
        return AutoConfig.for_model(**({"model_type": kind} | config))
    except (ValueError, KeyError) as error:
        raise ModelError(
            f"architecture {config['architectures'][0]} is not supported: neither here nor by "
            f"transformers, as model_type {kind!r}"
        ) from error


def _materialize(model: nn.Module, *, dtype: torch.dtype, device: torch.device) -> None:
    """Give every parameter memory."""
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            values = torch.empty(parameter.shape, dtype=dtype, device=device)
            setattr(module, name, nn.Parameter(values, requires_grad=False))
        for name, buffer in list(module.named_buffers(recurse=False)):
            module.register_buffer(name, buffer.to(device), persistent=False)
