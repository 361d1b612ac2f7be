"""A step's grammar mask: its check, and the rows of logits it applies to."""

from dataclasses import dataclass

import numpy as np

from common.errors import InvalidStep
from common.step import GrammarMask, Int32s, Int64s, Uint64s


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MaskedRows:
    """Rows int64 [G] of the logits, and what they may draw: bits int32 [G, words], as in GrammarMask."""

    rows: Int64s
    bits: Int32s


def validate_mask(
    mask: GrammarMask | None, *, handles: Uint64s, needs_mask: bool, vocab_size: int
) -> None:
    """Raise InvalidStep unless a mask is there exactly when it is needed, for rows that sample."""
    if (mask is not None) != needs_mask:
        raise InvalidStep(
            "grammar_mask: missing, the step said that one follows"
            if needs_mask
            else "grammar_mask: the step did not say that one follows"
        )
    if mask is None:
        return
    num_words = -(-vocab_size // 32)
    if len(mask.handles) and mask.bits.shape[1] != num_words:
        raise InvalidStep(
            f"grammar_mask.bits: {mask.bits.shape[1]} words a position, a vocabulary of "
            f"{vocab_size} has {num_words}"
        )
    if (mask.num_positions != 1).any():
        raise InvalidStep("grammar_mask.num_positions: a row samples one position")
    places = {handle: row for row, handle in enumerate(handles.tolist())}
    rows = [places.get(handle) for handle in mask.handles.tolist()]
    if None in rows:
        raise InvalidStep(
            f"grammar_mask.handles: {mask.handles[rows.index(None)]} does not sample in this step"
        )
    if len(set(rows)) != len(rows):
        raise InvalidStep("grammar_mask.handles: a request stands there twice")


def masked_rows(mask: GrammarMask | None, *, handles: Uint64s) -> MaskedRows | None:
    """Where a valid mask applies among the rows that sample, whose handles are given."""
    if mask is None or not len(mask.handles):
        return None
    places = {handle: row for row, handle in enumerate(handles.tolist())}
    rows = np.array([places[handle] for handle in mask.handles.tolist()], dtype=np.int64)
    return MaskedRows(rows=rows, bits=mask.bits)
