"""The decoder block and the slice of a decoder stack that one pipeline stage holds.

Legend: T tokens of the step, S rows that need logits, V vocabulary, D model size.
"""

from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor, nn

from worker_service.attention.backend import Attend
from worker_service.attention.form import AttentionForm
from worker_service.kernels.decoder_layers import NativeLayers
from worker_service.kernels.rotary import Rotation
from worker_service.models.layers.attention import SelfAttention
from worker_service.models.layers.embedding import VocabularyTable
from worker_service.models.layers.mlp import GatedMLP
from worker_service.models.layers.moe import ExpertsMLP
from worker_service.models.layers.norm import RMSNorm
from worker_service.models.layers.rotary import RotaryEmbedding
from worker_service.models.model_spec import ModelSpec
from worker_service.parallel.groups import Ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSlice:
    """What of a model one worker holds: layers (step 1), both ends or not, and its share of each."""

    layers: range
    is_first: bool = True
    is_last: bool = True
    ranks: Ranks = field(default_factory=Ranks)


class DecoderLayer(nn.Module):
    """Pre-norm attention and MLP, each added to the residual."""

    def __init__(
        self,
        spec: ModelSpec,
        *,
        index: int,
        ranks: Ranks,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Make layer `index` of the model, counted from 0."""
        super().__init__()

        def norm() -> RMSNorm:
            return make_norm(spec, dtype=dtype, device=device)

        self.window = spec.windows[index] if spec.windows else 0
        form = AttentionForm(self.window, spec.attention_soft_cap)
        self.attention_norm = norm()
        self.attention = SelfAttention(spec, ranks=ranks, dtype=dtype, device=device, form=form)
        self.mlp_norm = norm()
        self.mlp = (
            GatedMLP(spec, ranks=ranks, dtype=dtype, device=device)
            if spec.experts is None
            else ExpertsMLP(spec.experts, hidden_size=spec.hidden_size, dtype=dtype, device=device)
        )
        self.has_post_norms = spec.has_post_norms
        if spec.has_post_norms:
            self.attention_post_norm, self.mlp_post_norm = norm(), norm()

    def forward(
        self,
        added_TD: Tensor,
        residual_TD: Tensor | None,
        *,
        layer: int,
        rotation: Rotation,
        attend: Attend,
    ) -> tuple[Tensor, Tensor]:
        """Transform hidden states as the stage's layer `layer` (from 0).

        Hidden states come and go as two parts that are still to be added. The first layer is given
        them whole, without a residual, and leaves them alone; the others write to their first part.
        """
        if residual_TD is None:
            normed_TD = self.attention_norm(added_TD)
        else:
            normed_TD = self.attention_norm.add(added_TD, residual_TD)
        attended_TD = self.attention(normed_TD, layer=layer, rotation=rotation, attend=attend)
        if self.has_post_norms:
            attended_TD = self.attention_post_norm(attended_TD)
        normed_TD = self.mlp_norm.add(attended_TD, added_TD)
        out_TD = self.mlp(normed_TD)
        return (self.mlp_post_norm(out_TD) if self.has_post_norms else out_TD), attended_TD


def make_norm(spec: ModelSpec, *, dtype: torch.dtype, device: torch.device) -> RMSNorm:
    """A norm of hidden states as the model has them."""
    return RMSNorm(
        spec.hidden_size,
        eps=spec.rms_norm_eps,
        dtype=dtype,
        device=device,
        has_unit_offset=spec.has_unit_offset,
    )


class DecoderModel(nn.Module):
    """One stage of a decoder-only model, parameters undefined until they are loaded.

    A tied table stands on the first stage as embedding and on the last as head; a stage that is
    both holds it once.
    """

    def __init__(
        self, spec: ModelSpec, stage: StageSlice, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        self.spec = spec
        self.stage = stage
        ranks = stage.ranks
        self._num_heads = len(ranks.span(spec.num_heads)) + 2 * len(ranks.span(spec.num_kv_heads))

        def table() -> VocabularyTable:
            return VocabularyTable(
                spec.vocab_size, spec.hidden_size, ranks=ranks, dtype=dtype, device=device
            )

        self.native_layers: NativeLayers | None = None
        self.rotary = RotaryEmbedding(spec.head_size, rope=spec.rope, device=device)
        self.local_rotary = (
            None
            if spec.local_rope is None
            else RotaryEmbedding(spec.head_size, rope=spec.local_rope, device=device)
        )
        self.layers = nn.ModuleList(
            DecoderLayer(spec, index=index, ranks=ranks, dtype=dtype, device=device)
            for index in stage.layers
        )
        if stage.is_first:
            self.embedding = table()
        if stage.is_last:
            self.norm = make_norm(spec, dtype=dtype, device=device)
            is_shared = stage.is_first and spec.has_tied_head
            self.head = self.embedding if is_shared else table()

    def embed(self, token_ids_T: Tensor) -> Tensor:
        """Hidden states [T, D] of tokens; first stage only."""
        hidden_TD = self.embedding.embed(token_ids_T)
        if self.spec.embedding_scale == 1:
            return hidden_TD
        # Rounded to the dtype first, as checkpoints were trained.
        return hidden_TD * torch.tensor(self.spec.embedding_scale, dtype=hidden_TD.dtype)

    def forward(self, hidden_TD: Tensor, positions_T: Tensor, attend: Attend) -> Tensor:
        """Run the stage's layers on tokens at the given positions; the input is left alone; [T, D]."""
        rotation = self.rotary(positions_T, dtype=hidden_TD.dtype)
        if self.native_layers is not None:
            step = attend.native_step(
                num_heads=self._num_heads,
                head_size=self.spec.head_size,
                dtype=hidden_TD.dtype,
                rotation=rotation,
            )
            if step is not None:
                return self.native_layers.run(
                    hidden_TD, step=step, keys_and_values=attend.addresses
                )
        local = rotation
        if self.local_rotary is not None:
            local = self.local_rotary(positions_T, dtype=hidden_TD.dtype)
        added_TD: Tensor = hidden_TD
        residual_TD: Tensor | None = None
        for index, layer in enumerate(self.layers):
            added_TD, residual_TD = layer(
                added_TD,
                residual_TD,
                layer=index,
                rotation=local if cast(DecoderLayer, layer).window else rotation,
                attend=attend,
            )
        assert residual_TD is not None, "a stage has a layer"
        return added_TD.add_(residual_TD)

    def compute_logits(self, hidden_SD: Tensor) -> Tensor:
        """Final norm and head, for rows of the last layer's output; float32 [S, V]; last stage only."""
        logits_SV = self.head.compute_logits(self.norm(hidden_SD))
        cap = self.spec.final_soft_cap
        return cap * torch.tanh(logits_SV / cap) if cap else logits_SV
