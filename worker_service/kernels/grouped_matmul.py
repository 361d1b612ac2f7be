"""Rows multiplied each by the weight of its group: experts of a mixture, or adapters.

    y[p] = scale[p] * (W[group(p)] @ x[source(p)])

Pairs p are sorted by group and every group's share is padded to whole tiles, so that a tile of rows
has one weight (the layout of MegaBlocks, Gale et al., arXiv:2211.15841). Padding computes nothing.

Legend: P pairs of a row and a group, M rows of x, E groups, I inputs, O outputs, L sorted places.
"""

# pyright: reportCallIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false
# Triton has no types of its own: a kernel is another language in the clothes of a function.

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from worker_service.kernels.launches import count_launch
from worker_service.kernels.triton_dtypes import dot_dtype

NO_GROUP = -1
"""The group of a pair that is left out."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SortedPairs:
    """Pairs in the order of their groups, tile by tile.

    pairs int32 [L]: the pair of each place, num_pairs where a place is padding; tile_groups int32
    [L / tile_rows]: the group of each tile, NO_GROUP for tiles that are padding altogether.
    """

    pairs: Tensor
    tile_groups: Tensor
    tile_rows: int
    num_pairs: int


def sort_by_group(groups_P: Tensor, *, num_groups: int, tile_rows: int = 16) -> SortedPairs:
    """Sort pairs by group, without waiting for the device; groups int [P], NO_GROUP leaves one out."""
    num_pairs = len(groups_P)
    device = groups_P.device
    groups_P = torch.where(groups_P == NO_GROUP, num_groups, groups_P).to(torch.int64)
    counts_E = torch.zeros(num_groups + 1, dtype=torch.int64, device=device)
    counts_E.scatter_add_(0, groups_P, torch.ones_like(groups_P))
    ends_E = ((counts_E[:num_groups] + tile_rows - 1) // tile_rows * tile_rows).cumsum(0)
    starts_E = torch.cat((ends_E.new_zeros(1), ends_E))
    order_P = groups_P.argsort(stable=True)
    sorted_P = groups_P[order_P]
    rank_P = torch.arange(num_pairs, device=device) - (counts_E.cumsum(0) - counts_E)[sorted_P]
    # As many tiles as there can be at most: each group may end in a tile of one row.
    most_tiles = min(num_pairs, num_pairs // tile_rows + num_groups)
    length = most_tiles * tile_rows
    place_P = torch.where(sorted_P < num_groups, starts_E[sorted_P] + rank_P, length)
    pairs = torch.full((length + 1,), num_pairs, dtype=torch.int32, device=device)
    pairs[place_P] = order_P.to(torch.int32)
    tile_starts = torch.arange(0, length, tile_rows, device=device)
    tile_groups = torch.searchsorted(ends_E, tile_starts, right=True)
    tile_groups = torch.where(tile_groups < num_groups, tile_groups, NO_GROUP)
    return SortedPairs(
        pairs=pairs[:length],
        tile_groups=tile_groups.to(torch.int32),
        tile_rows=tile_rows,
        num_pairs=num_pairs,
    )


def grouped_matmul(
    x_MI: Tensor,
    w_EOI: Tensor,
    pairs: SortedPairs,
    *,
    pairs_per_row: int,
    scale_P: Tensor | None = None,
    out_PO: Tensor | None = None,
    adds: bool = False,
) -> Tensor:
    """Multiply, [P, O]; pair p reads row p // pairs_per_row of x. Pairs left out get 0.

    With `adds` the products are added to `out_PO`, otherwise written there, or to a new tensor.
    """
    num_outputs, num_inputs = w_EOI.shape[1:]
    if out_PO is None:
        shape = (pairs.num_pairs, num_outputs)
        out_PO = torch.zeros(shape, dtype=x_MI.dtype, device=x_MI.device)
    count_launch("grouped_matmul")
    num_tiles = len(pairs.tile_groups)
    if num_tiles:
        tile_outputs = min(64, max(16, triton.next_power_of_2(num_outputs)))
        grouped_matmul_kernel[(num_tiles, triton.cdiv(num_outputs, tile_outputs))](
            x_MI,
            w_EOI,
            pairs.pairs,
            pairs.tile_groups,
            scale_P if scale_P is not None else x_MI,
            out_PO,
            pairs.num_pairs,
            num_inputs,
            num_outputs,
            x_MI.stride(0),
            w_EOI.stride(0),
            w_EOI.stride(1),
            out_PO.stride(0),
            PAIRS_PER_ROW=pairs_per_row,
            HAS_SCALE=scale_P is not None,
            ADDS=adds,
            TILE_ROWS=pairs.tile_rows,
            TILE_OUTPUTS=tile_outputs,
            TILE_INPUTS=min(64, max(16, triton.next_power_of_2(num_inputs))),
            DOT=dot_dtype(x_MI),
            num_warps=4,
        )
    return out_PO


def grouped_matmul_reference(
    x_MI: Tensor,
    w_EOI: Tensor,
    groups_P: Tensor,
    *,
    pairs_per_row: int,
    scale_P: Tensor | None = None,
) -> Tensor:
    """The formula in torch, group by group; [P, O]."""
    shape = (len(groups_P), w_EOI.shape[1])
    out_PO = torch.zeros(shape, dtype=x_MI.dtype, device=x_MI.device)
    for group in range(len(w_EOI)):
        (chosen,) = (groups_P == group).nonzero(as_tuple=True)
        y_PO = x_MI[chosen // pairs_per_row].float() @ w_EOI[group].float().T
        if scale_P is not None:
            y_PO *= scale_P[chosen, None].float()
        out_PO[chosen] = y_PO.to(x_MI.dtype)
    return out_PO


@triton.jit
def grouped_matmul_kernel(
    x_ptr,  # [M, I], I contiguous
    w_ptr,  # [E, O, I], I contiguous
    pairs_ptr,  # int32 [L]
    tile_groups_ptr,  # int32 [L / TILE_ROWS]
    scale_ptr,  # [P]
    out_ptr,  # [P, O], O contiguous
    num_pairs,
    num_inputs,
    num_outputs,
    x_stride_m,
    w_stride_e,
    w_stride_o,
    out_stride_p,
    PAIRS_PER_ROW: tl.constexpr,
    HAS_SCALE: tl.constexpr,
    ADDS: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_OUTPUTS: tl.constexpr,
    TILE_INPUTS: tl.constexpr,
    DOT: tl.constexpr,
):
    """One tile of rows by one tile of outputs."""
    tile = tl.program_id(0)
    group = tl.load(tile_groups_ptr + tile)
    if group < 0:
        return
    pair = tl.load(pairs_ptr + tile * TILE_ROWS + tl.arange(0, TILE_ROWS)).to(tl.int64)
    is_pair = pair < num_pairs
    o = tl.program_id(1) * TILE_OUTPUTS + tl.arange(0, TILE_OUTPUTS)
    is_o = o < num_outputs
    i = tl.arange(0, TILE_INPUTS)
    x_row = x_ptr + (pair // PAIRS_PER_ROW)[:, None] * x_stride_m
    w_row = w_ptr + group.to(tl.int64) * w_stride_e + o[None, :].to(tl.int64) * w_stride_o
    acc = tl.zeros([TILE_ROWS, TILE_OUTPUTS], dtype=tl.float32)
    for first in range(0, num_inputs, TILE_INPUTS):
        is_i = first + i < num_inputs
        x = tl.load(x_row + first + i[None, :], mask=is_pair[:, None] & is_i[None, :], other=0.0)
        w = tl.load(w_row + first + i[:, None], mask=is_i[:, None] & is_o[None, :], other=0.0)
        acc += tl.dot(x.to(DOT), w.to(DOT), input_precision="ieee")
    if HAS_SCALE:
        acc *= tl.load(scale_ptr + pair, mask=is_pair, other=0.0).to(tl.float32)[:, None]
    at = out_ptr + pair[:, None] * out_stride_p + o[None, :]
    is_out = is_pair[:, None] & is_o[None, :]
    if ADDS:
        acc += tl.load(at, mask=is_out, other=0.0).to(tl.float32)
    tl.store(at, acc.to(out_ptr.dtype.element_ty), mask=is_out)
