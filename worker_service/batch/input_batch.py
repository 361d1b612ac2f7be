"""The inputs of one step, gathered from the request states and frozen."""

from dataclasses import dataclass

from torch import Tensor

from common.step import Int32s, Int64s, Uint64s

# T tokens of the step, R rows (requests) of the step, S rows that sample, N logits rows of those, B
# most blocks of a row


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScheduledRows:
    """The rows of a step after the states were updated, on the host.

    handles uint64 [R]; slots int64 [R]; num_computed int32 [R], before the step; num_scheduled
    int32 [R], at least 1 each; num_drafts int32 [R], how many of those are drafts, the last ones;
    num_wanted int32 [R], most drafts to propose behind what is sampled.
    """

    handles: Uint64s
    slots: Int64s
    num_computed: Int32s
    num_scheduled: Int32s
    num_drafts: Int32s
    num_wanted: Int32s


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class InputBatch:
    """What the forward pass and the sampler read.

    On the device: token_ids and positions int64 [T]; query_offsets int32 [R + 1]; seq_lens int32
    [R], computed and scheduled tokens; of each block table of the model block_tables int32 [R, B],
    padded with the null block 0, and slot_mappings int64 [T]; logits_indices int64 [N], of each row that samples the last known token and all
    drafts behind it.
    On the host: query_lens and seq_lens_np int32 [R]; sampling_rows int64 [S]. A row samples when
    the step computes the last token known of it.
    """

    rows: ScheduledRows
    token_ids: Tensor
    positions: Tensor
    query_offsets: Tensor
    seq_lens: Tensor
    block_tables: tuple[Tensor, ...]
    slot_mappings: tuple[Tensor, ...]
    logits_indices: Tensor
    query_lens: Int32s
    seq_lens_np: Int32s
    sampling_rows: Int64s

    @property
    def num_tokens(self) -> int:
        """Tokens of the step."""
        return len(self.token_ids)

    @property
    def num_rows(self) -> int:
        """Requests of the step."""
        return len(self.query_lens)
