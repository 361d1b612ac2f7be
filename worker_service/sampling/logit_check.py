"""Which rows of logits can be sampled from."""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

# S rows that sample, V vocabulary


def finite_rows(logits_SV: Tensor) -> NDArray[np.bool_]:
    """Whether each row holds only finite numbers, bool [S] on the host.

    A row's sum is finite unless an element is not, or the sum itself overflows; it costs one pass,
    so only rows with a sum that is not finite are looked at element by element.
    """
    is_finite_S = logits_SV.sum(dim=1).isfinite()
    if not bool(is_finite_S.all()):
        is_finite_S = logits_SV.isfinite().all(dim=1)
    return is_finite_S.cpu().numpy()
