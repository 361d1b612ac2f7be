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
    mask: GrammarMask | None,
    *,
    handles: Uint64s,
    num_drafts: Int64s,
    needs_mask: bool,
    vocab_size: int,
) -> None:
    """Raise InvalidStep unless a mask is there exactly when it is needed, for rows that sample.

    Of each of these, given by handle, the logits after its last token and after its drafts are drawn
    from. A mask may end early: behind a draft that the one before it forbids nothing is emitted.
    """
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
    places = {handle: row for row, handle in enumerate(handles.tolist())}
    rows = [places.get(handle) for handle in mask.handles.tolist()]
    if None in rows:
        raise InvalidStep(
            f"grammar_mask.handles: {mask.handles[rows.index(None)]} does not sample in this step"
        )
    if len(set(rows)) != len(rows):
        raise InvalidStep("grammar_mask.handles: a request stands there twice")
    most = num_drafts[np.array(rows, dtype=np.int64)] + 1
    is_wrong = (mask.num_positions < 1) | (mask.num_positions > most)
    if is_wrong.any():
        wrong = int(is_wrong.argmax())
        raise InvalidStep(
            f"grammar_mask.num_positions: {mask.num_positions[wrong]} for request "
            f"{mask.handles[wrong]}, which samples {most[wrong]}"
        )


def masked_rows(
    mask: GrammarMask | None, *, handles: Uint64s, num_drafts: Int64s
) -> MaskedRows | None:
    """Where a valid mask applies among the logits rows of the rows that sample."""
    if mask is None or not len(mask.handles):
        return None
    firsts = np.cumsum(num_drafts + 1) - (num_drafts + 1)
    places = dict(zip(handles.tolist(), firsts.tolist(), strict=True))
    rows = [
        np.arange(places[handle], places[handle] + count)
        for handle, count in zip(mask.handles.tolist(), mask.num_positions.tolist(), strict=True)
    ]
    return MaskedRows(rows=np.concatenate(rows), bits=mask.bits)
