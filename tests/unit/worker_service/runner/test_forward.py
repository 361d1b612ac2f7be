"""The forward stage over microbatches."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from worker_service.runner.forward import forward


@dataclass(frozen=True)
class Microbatch:
    """The part of an InputBatch that the stage reads."""

    positions: Tensor

    @property
    def num_tokens(self) -> int:
        """Tokens of the microbatch."""
        return len(self.positions)


def model(hidden_TD: Tensor, positions_T: Tensor, attend: Callable[[Tensor], Tensor]) -> Tensor:
    """Layers that add each token's position and call their attention."""
    return attend(hidden_TD + positions_T.unsqueeze(1))


def test_microbatches_see_their_own_rows_and_come_back_in_order():
    """Each part meets its positions and its attention, and the whole has the rows' order."""
    hidden = torch.arange(5.0).unsqueeze(1)
    microbatches = [Microbatch(torch.tensor([10, 20])), Microbatch(torch.tensor([30, 40, 50]))]
    attends = [lambda hidden_TD: hidden_TD * 2, lambda hidden_TD: hidden_TD * 3]
    whole = forward(model, hidden, microbatches, attends)
    assert whole[:, 0].tolist() == [20, 42, 96, 129, 162]
