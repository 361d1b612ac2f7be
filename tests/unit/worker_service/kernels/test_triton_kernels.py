"""Triton kernels around attention, each against its torch reference, over odd sizes and both dtypes."""

import pytest
import torch
from torch.nn import functional

from tests.fakes.triton_device import DEVICE, poisoned
from worker_service.kernels.draw import draw_tokens_reference
from worker_service.kernels.draw_triton import draw_tokens_triton
from worker_service.kernels.gate_triton import gate_triton
from worker_service.kernels.gated_activation import silu_and_multiply_reference
from worker_service.kernels.grouped_matmul import (
    NO_GROUP,
    grouped_matmul,
    grouped_matmul_reference,
    sort_by_group,
)
from worker_service.kernels.input_prep import TokenInputs, gather_inputs, gather_inputs_reference
from worker_service.kernels.lora_matmul import add_lora, add_lora_reference
from worker_service.kernels.norm import rms_norm_reference
from worker_service.kernels.norm_rope import rms_norm_triton, rotate_triton
from worker_service.kernels.rotary import Rotation, rotate

torch.set_num_threads(1)

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


def random(*shape: int, dtype: torch.dtype, seed: int = 1) -> torch.Tensor:
    """Seeded normal numbers."""
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return values.to(dtype).to(DEVICE)


def close(got: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal but for the rounding of the dtype."""
    tolerance = 1e-5 if got.dtype is torch.float32 else 2e-2
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=10 * tolerance)


@DTYPES
@pytest.mark.parametrize("size", [1, 37, 576])
def test_rms_norm(size: int, dtype: torch.dtype) -> None:
    """Alone, and of a sum that replaces its first part."""
    x, residual = random(5, size, dtype=dtype), random(5, size, dtype=dtype, seed=2)
    weight = random(size, dtype=dtype, seed=3)
    close(rms_norm_triton(x, weight, eps=1e-6), rms_norm_reference(x, weight, eps=1e-6))
    total = x + residual
    out = rms_norm_triton(x, weight, eps=1e-6, residual_TD=residual)
    close(x, total)
    close(out, rms_norm_reference(total, weight, eps=1e-6))


def test_rms_norm_with_unit_offset() -> None:
    """One plus the weight, multiplied before the only rounding."""
    x, weight = random(3, 40, dtype=torch.bfloat16), random(40, dtype=torch.bfloat16, seed=3)
    normed = functional.rms_norm(x.float(), (40,), None, 1e-6) * (1 + weight.float())
    got = rms_norm_triton(x, weight, eps=1e-6, has_unit_offset=True)
    close(got, normed.to(torch.bfloat16))


@DTYPES
@pytest.mark.parametrize("head_size", [2, 24, 64])
def test_rotation(head_size: int, dtype: torch.dtype) -> None:
    """The heads given turn in place; their neighbours in the same memory do not."""
    qkv = random(6, 7, head_size, dtype=dtype)
    before = qkv.clone()
    angles = random(6, 1, head_size // 2, dtype=torch.float32, seed=4)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    rotation = Rotation(torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1))
    rotate_triton(qkv[:, :4], rotation.cos_T1D, rotation.sin_T1D)
    close(qkv[:, :4], rotate(before[:, :4], rotation))
    assert torch.equal(qkv[:, 4:], before[:, 4:])


@DTYPES
@pytest.mark.parametrize("size", [1, 1500])
def test_gates(size: int, dtype: torch.dtype) -> None:
    """SiLU, and GELU by tanh."""
    gate_up = random(3, 2 * size, dtype=dtype)
    close(gate_triton(gate_up), silu_and_multiply_reference(gate_up))
    gate, up = gate_up.chunk(2, dim=-1)
    expected = functional.gelu(gate, approximate="tanh") * up
    close(gate_triton(gate_up, is_gelu=True), expected)


@DTYPES
@pytest.mark.parametrize("num_rows", [1, 11, 40])
def test_experts(num_rows: int, dtype: torch.dtype) -> None:
    """Each row by two of five experts, weighted; a pair without an expert is 0."""
    x, w = random(num_rows, 40, dtype=dtype), random(5, 50, 40, dtype=dtype, seed=2)
    generator = torch.Generator().manual_seed(5)
    groups = torch.randint(0, 4, (2 * num_rows,), generator=generator)
    groups[1] = NO_GROUP
    groups, scale = groups.to(DEVICE), torch.rand(2 * num_rows, generator=generator).to(DEVICE)
    pairs = sort_by_group(groups, num_groups=5)
    got = grouped_matmul(x, w, pairs, pairs_per_row=2, scale_P=scale)
    expected = grouped_matmul_reference(x, w, groups, pairs_per_row=2, scale_P=scale)
    close(got, expected)
    assert not got[1].any()


def test_pairs_are_sorted_into_whole_tiles() -> None:
    """Every pair stands once, in a tile of its group, in its order."""
    groups = torch.tensor([2, 0, 2, NO_GROUP, 0, 2], device=DEVICE)
    pairs = sort_by_group(groups, num_groups=3, tile_rows=2)
    tiles = pairs.pairs.view(-1, 2).tolist()
    used = {group: tile for group, tile in zip(pairs.tile_groups.tolist(), tiles, strict=True)}
    assert used[0] == [1, 4]
    assert [tile for tile in tiles if tile != [6, 6]] == [[1, 4], [0, 2], [5, 6]]
    assert pairs.tile_groups.tolist()[:3] == [0, 2, 2]


@DTYPES
def test_adapters(dtype: torch.dtype) -> None:
    """Each token by its own adapter or none, added to what is there."""
    adapters = torch.tensor([0, NO_GROUP, 1, 1, 0, NO_GROUP, 2, 0, 0, 0, 1], device=DEVICE)
    num_tokens = len(adapters)
    x, y = random(num_tokens, 40, dtype=dtype), random(num_tokens, 50, dtype=dtype, seed=2)
    a, b = random(3, 8, 40, dtype=dtype, seed=3), random(3, 50, 8, dtype=dtype, seed=4)
    scale, expected = random(num_tokens, dtype=torch.float32, seed=5).abs(), y.clone()
    pairs = sort_by_group(adapters, num_groups=3)
    add_lora(y, x, a_EZI=a, b_EOZ=b, scale_T=scale, pairs=pairs)
    add_lora_reference(expected, x, a_EZI=a, b_EOZ=b, scale_T=scale, adapters_T=adapters)
    tolerance = 1e-4 if dtype is torch.float32 else 5e-2
    torch.testing.assert_close(y, expected, rtol=tolerance, atol=10 * tolerance)


@pytest.mark.parametrize("num_padded", [160, 171, 400])
def test_inputs_are_gathered(num_padded: int) -> None:
    """Rows of many and of single tokens, and padding, which is stored nowhere."""
    generator = torch.Generator().manual_seed(6)
    slots = torch.tensor([3, 0, 2])
    num_computed = torch.tensor([0, 5, 140], dtype=torch.int32)
    offsets = torch.tensor([0, 150, 151, 160], dtype=torch.int32)
    tokens = torch.randint(0, 1000, (4, 200), dtype=torch.int32, generator=generator)
    blocks = torch.randint(0, 99, (4, 50), dtype=torch.int32, generator=generator)
    expected = TokenInputs.empty(num_padded, torch.device("cpu"))
    gather_inputs_reference(
        slots,
        num_computed,
        offsets,
        tokens_QW=tokens,
        blocks_QB=blocks,
        block_size=4,
        out=expected,
    )
    got = TokenInputs.empty(num_padded, DEVICE)
    gather_inputs(
        slots.to(DEVICE),
        num_computed.to(DEVICE),
        offsets.to(DEVICE),
        tokens_QW=tokens.to(DEVICE),
        blocks_QB=blocks.to(DEVICE),
        block_size=4,
        max_query_len=150,
        out=got,
    )
    for name in ("token_ids", "positions", "slot_mapping"):
        assert torch.equal(getattr(got, name).cpu(), getattr(expected, name))
    assert (got.slot_mapping[160:] == -1).all()


@pytest.mark.parametrize("vocabulary", [7, 3000])
def test_draws(vocabulary: int) -> None:
    """The same tokens as the reference from the same seeds, greedy rows and ties among them."""
    generator = torch.Generator().manual_seed(7)
    num_rows = 40
    logits = torch.randn(num_rows, vocabulary, generator=generator) * 3
    temperature = torch.rand(num_rows, generator=generator) + 0.3
    min_p = torch.where(torch.arange(num_rows) % 2 == 0, 0.0, 0.05)
    seeds = torch.randint(-(2**63), 2**63 - 1, (num_rows,), generator=generator)
    positions = torch.randint(0, 5000, (num_rows,), generator=generator)
    expected = draw_tokens_reference(
        logits,
        temperature_R=temperature,
        min_p_R=min_p,
        seeds_R=seeds,
        positions_R=positions,
    )
    # A greedy row takes the lowest of its best tokens.
    temperature[5], logits[5, -2:] = 0.0, 99.0
    expected[5] = vocabulary - 2
    got = draw_tokens_triton(
        logits.to(DEVICE),
        temperature_R=temperature.to(DEVICE),
        min_p_R=min_p.to(DEVICE),
        seeds_R=seeds.to(DEVICE),
        positions_R=positions.to(DEVICE),
    )
    assert torch.equal(got.cpu(), expected)


def test_poison_is_what_it_says() -> None:
    """Memory that was not written shows."""
    assert poisoned(2, dtype=torch.float32).isnan().all()
