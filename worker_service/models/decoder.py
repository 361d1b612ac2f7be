"""The decoder block and the slice of a decoder stack that one pipeline stage holds.

Legend: T tokens of the step, S rows that need logits, V vocabulary, D model size.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from worker_service.attention.backend import Attend
from worker_service.models.layers.attention import SelfAttention
from worker_service.models.layers.embedding import VocabularyTable
from worker_service.models.layers.mlp import GatedMLP
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
        self, spec: ModelSpec, *, ranks: Ranks, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(
            spec.hidden_size, eps=spec.rms_norm_eps, dtype=dtype, device=device
        )
        self.attention = SelfAttention(spec, ranks=ranks, dtype=dtype, device=device)
        self.mlp_norm = RMSNorm(spec.hidden_size, eps=spec.rms_norm_eps, dtype=dtype, device=device)
        self.mlp = GatedMLP(spec, ranks=ranks, dtype=dtype, device=device)

    def forward(
        self, hidden_TD: Tensor, *, layer: int, rotation: tuple[Tensor, Tensor], attend: Attend
    ) -> Tensor:
        """Transform the hidden states as the stage's layer `layer` (from 0), leaving the input alone."""
        hidden_TD = hidden_TD + self.attention(
            self.attention_norm(hidden_TD), layer=layer, rotation=rotation, attend=attend
        )
        return hidden_TD + self.mlp(self.mlp_norm(hidden_TD))


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

        def table() -> VocabularyTable:
            return VocabularyTable(
                spec.vocab_size, spec.hidden_size, ranks=ranks, dtype=dtype, device=device
            )

        self.rotary = RotaryEmbedding(spec.head_size, rope=spec.rope, device=device)
        self.layers = nn.ModuleList(
            DecoderLayer(spec, ranks=ranks, dtype=dtype, device=device) for _ in stage.layers
        )
        if stage.is_first:
            self.embedding = table()
        if stage.is_last:
            self.norm = RMSNorm(spec.hidden_size, eps=spec.rms_norm_eps, dtype=dtype, device=device)
            is_shared = stage.is_first and spec.has_tied_head
            self.head = self.embedding if is_shared else table()

    def embed(self, token_ids_T: Tensor) -> Tensor:
        """Hidden states [T, D] of tokens; first stage only."""
        return self.embedding.embed(token_ids_T)

    def forward(self, hidden_TD: Tensor, positions_T: Tensor, attend: Attend) -> Tensor:
        """Run the stage's layers on tokens at the given positions; the input is left alone; [T, D]."""
        rotation = self.rotary(positions_T, dtype=hidden_TD.dtype)
        for index, layer in enumerate(self.layers):
            hidden_TD = layer(hidden_TD, layer=index, rotation=rotation, attend=attend)
        return hidden_TD

    def compute_logits(self, hidden_SD: Tensor) -> Tensor:
        """Final norm and head, for rows of the last layer's output; float32 [S, V]; last stage only."""
        return self.head.compute_logits(self.norm(hidden_SD))
