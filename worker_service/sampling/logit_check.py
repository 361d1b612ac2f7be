"""Which rows of logits can be sampled from."""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

# S rows that sample, V vocabulary


def finite_rows(logits_SV: Tensor) -> NDArray[np.bool_]:
    """Whether each row holds only finite numbers, bool [S] on the host."""
    return logits_SV.isfinite().all(dim=1).cpu().numpy()
