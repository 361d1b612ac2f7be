"""Token embedding and output head, whose vocabulary is split over tensor-parallel ranks.

Legend: T tokens, S rows that need logits, V vocabulary, D model size.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from worker_service.kernels.packed_weight import PackedWeight, PlainWeight, WeightPacker
from worker_service.parallel.collectives import all_gather, all_reduce
from worker_service.parallel.groups import Ranks


class VocabularyTable(nn.Module):
    """One row per token: looked up as embedding, multiplied as head, or both when they are tied.

    Ranks hold equally many rows; rows past the vocabulary's end are zero and never used.
    """

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        *,
        ranks: Ranks,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__()
        self._vocab_size = vocab_size
        self._ranks = ranks
        self._rows = ranks.padded_span(vocab_size)
        shape = (len(self._rows), hidden_size)
        self.weight = nn.Parameter(
            torch.empty(shape, dtype=dtype, device=device), requires_grad=False
        )
        self.weight[max(0, vocab_size - self._rows.start) :] = 0
        self.packed: PackedWeight = PlainWeight(self.weight)

    def pack(self, packer: WeightPacker, *, is_looked_up: bool) -> None:
        """Hold what the head multiplies in another form; plain rows stay where they are looked up."""
        self.packed = packer(self.weight)
        if not is_looked_up:
            del self.weight

    def embed(self, token_ids_T: Tensor) -> Tensor:
        """Look the tokens up; [T, D] on every rank."""
        if self._ranks.size == 1:
            return functional.embedding(token_ids_T, self.weight)
        local_T = token_ids_T - self._rows.start
        is_here_T = (local_T >= 0) & (local_T < len(self._rows))
        rows_TD = functional.embedding(local_T.where(is_here_T, 0), self.weight)
        return all_reduce(rows_TD.masked_fill_(~is_here_T[:, None], 0), self._ranks)

    def compute_logits(self, hidden_SD: Tensor) -> Tensor:
        """Multiply by every token's row; float32 [S, V] on every rank."""
        local_SV = self.packed.multiply(hidden_SD, dtype=torch.float32)
        return all_gather(local_SV, self._ranks)[:, : self._vocab_size]
