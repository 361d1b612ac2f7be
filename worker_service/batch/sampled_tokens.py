"""The tokens one step sampled, as the last stage feeds them to the first one."""

from dataclasses import dataclass

import numpy as np

from common.errors import TensorError
from common.step import Int32s, Int64s, Uint64s
from common.tensors import DType, WireTensor, wire_tensor

NAME = "sampled_tokens"
"""Name of the only tensor of a feedback message: int64 [3, S] of handles, positions and token ids."""

_NUM_COLUMNS = 3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SampledTokens:
    """One token of each of the S rows that sampled.

    handles uint64 [S]; positions int64 [S], index of the token in its sequence; token_ids int32 [S],
    0 where sampling failed: what is computed from that is dropped.
    """

    handles: Uint64s
    positions: Int64s
    token_ids: Int32s

    @classmethod
    def none(cls) -> "SampledTokens":
        """No rows."""
        return cls(
            handles=np.empty(0, dtype=np.uint64),
            positions=np.empty(0, dtype=np.int64),
            token_ids=np.empty(0, dtype=np.int32),
        )

    def to_wire(self) -> tuple[WireTensor, ...]:
        """Spell them as a tensor."""
        columns = np.stack([self.handles.view(np.int64), self.positions, self.token_ids])
        shape = (_NUM_COLUMNS, len(self.handles))
        return (wire_tensor(name=NAME, dtype=DType.INT64, shape=shape, buffer=columns.data),)

    @classmethod
    def from_wire(cls, tensors: tuple[WireTensor, ...]) -> "SampledTokens":
        """Read them; raises TensorError for any other tensors."""
        described = [tensor.descriptor for tensor in tensors]
        if [(each.name, each.dtype, each.shape[:-1]) for each in described] != [
            (NAME, DType.INT64, (_NUM_COLUMNS,))
        ]:
            raise TensorError(f"the last stage fed back {[each.name for each in described]}")
        flat = np.frombuffer(tensors[0].buffer, dtype="<i8").astype(np.int64)
        handles, positions, token_ids = flat.reshape(described[0].shape)
        return cls(
            handles=handles.view(np.uint64),
            positions=positions,
            token_ids=token_ids.astype(np.int32),
        )
