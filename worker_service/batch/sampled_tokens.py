"""The tokens one step sampled and the drafts behind them, as the last stage feeds them to earlier ones."""

from dataclasses import dataclass

import numpy as np

from common.errors import TensorError
from common.step import Int64s, Ragged, Uint64s
from common.tensors import DType, WireTensor, wire_tensor

NAME = "sampled_tokens"
"""Name of the only tensor of a feedback message, int64 in one dimension.

S; handles, positions, numbers of tokens and numbers of drafts of the S rows; all tokens; all drafts.
"""

_NUM_COLUMNS = 4


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SampledTokens:
    """What each of the S rows that sampled emitted.

    handles uint64 [S]; positions int64 [S], index of the row's first token in its sequence; token_ids:
    Ragged of S rows, at least one token each, 0 where sampling failed: what is computed from that is
    dropped; drafts: Ragged of S rows, the guesses that follow.
    """

    handles: Uint64s
    positions: Int64s
    token_ids: Ragged
    drafts: Ragged

    @classmethod
    def none(cls) -> "SampledTokens":
        """No rows."""
        return cls(
            handles=np.empty(0, dtype=np.uint64),
            positions=np.empty(0, dtype=np.int64),
            token_ids=Ragged.from_rows([]),
            drafts=Ragged.from_rows([]),
        )

    def to_wire(self) -> tuple[WireTensor, ...]:
        """Spell them as a tensor."""
        flat = np.concatenate(
            [
                np.array([len(self.handles)], dtype=np.int64),
                self.handles.view(np.int64),
                self.positions,
                self.token_ids.lengths,
                self.drafts.lengths,
                self.token_ids.values,
                self.drafts.values,
            ]
        )
        return (wire_tensor(name=NAME, dtype=DType.INT64, shape=flat.shape, buffer=flat.data),)

    @classmethod
    def from_wire(cls, tensors: tuple[WireTensor, ...]) -> "SampledTokens":
        """Read them; raises TensorError for any other tensors."""
        described = [tensor.descriptor for tensor in tensors]
        if [(each.name, each.dtype, len(each.shape)) for each in described] != [
            (NAME, DType.INT64, 1)
        ]:
            raise TensorError(f"the last stage fed back {[each.name for each in described]}")
        flat = np.frombuffer(tensors[0].buffer, dtype="<i8").astype(np.int64)
        num_rows = int(flat[0]) if len(flat) else -1
        end = 1 + _NUM_COLUMNS * num_rows
        if num_rows < 0 or end > len(flat):
            raise TensorError(f"the last stage fed back {len(flat)} numbers for {num_rows} rows")
        handles, positions, num_tokens, num_drafts = flat[1:end].reshape(_NUM_COLUMNS, num_rows)
        first_draft = end + int(num_tokens.sum())
        if min(num_tokens.min(initial=0), num_drafts.min(initial=0)) < 0 or (
            first_draft + int(num_drafts.sum()) != len(flat)
        ):
            raise TensorError(
                f"the last stage fed back {len(flat)} numbers, not what they announce"
            )
        return cls(
            handles=handles.view(np.uint64),
            positions=positions,
            token_ids=Ragged.from_lengths(flat[end:first_draft].astype(np.int32), num_tokens),
            drafts=Ragged.from_lengths(flat[first_draft:].astype(np.int32), num_drafts),
        )
