"""Norms, gates, best tokens and draws: the native kernels against their torch references."""

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from tests.fakes.native_isa import native_isa
from worker_service.kernels.best_tokens import best_tokens, best_tokens_reference
from worker_service.kernels.draw import draw_tokens, draw_tokens_reference
from worker_service.kernels.gated_activation import silu_and_multiply
from worker_service.kernels.native import Isa, NativeKernels
from worker_service.kernels.norm import add_rms_norm, rms_norm, rms_norm_reference

torch.set_num_threads(1)

# T tokens, D model size, I inner size, S rows, V vocabulary

SHAPES = ((1, 576), (33, 576), (3, 50), (40, 1000))
DTYPES = (torch.float32, torch.bfloat16)
ROUNDING = {torch.float32: 2e-6, torch.bfloat16: 2**-8}
"""What the last bits of a dtype may differ by, relative."""


@pytest.fixture(params=[Isa.AVX512_BF16, Isa.AVX2], autouse=True)
def kernels(request: pytest.FixtureRequest) -> Iterator[NativeKernels]:
    """The native kernels on one instruction set, with two threads."""
    with native_isa(request.param, num_threads=2) as kernels:
        yield kernels


def draw(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Seeded normal values."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_norm_equals_the_reference(shape: tuple[int, int], dtype: torch.dtype) -> None:
    """Rows are normalised to the reference's last bit or the one beside it."""
    x_TD, weight_D = draw(*shape, dtype=dtype), draw(shape[1], dtype=dtype, seed=1)
    expected = rms_norm_reference(x_TD.clone(), weight_D, eps=1e-5)
    actual = rms_norm(x_TD, weight_D, eps=1e-5)
    torch.testing.assert_close(actual, expected, rtol=ROUNDING[dtype], atol=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_norm_of_a_sum_keeps_the_sum(shape: tuple[int, int], dtype: torch.dtype) -> None:
    """x becomes the rounded sum, of which the norm is taken; the residual stays."""
    x_TD, weight_D = draw(*shape, dtype=dtype), draw(shape[1], dtype=dtype, seed=1)
    residual_TD = draw(*shape, dtype=dtype, seed=2)
    total_TD, before_TD = x_TD + residual_TD, residual_TD.clone()
    actual = add_rms_norm(x_TD, residual_TD, weight_D, eps=1e-5)
    assert torch.equal(x_TD, total_TD)
    assert torch.equal(residual_TD, before_TD)
    expected = rms_norm_reference(total_TD, weight_D, eps=1e-5)
    torch.testing.assert_close(actual, expected, rtol=ROUNDING[dtype], atol=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_gate_is_exact_to_a_rounding(shape: tuple[int, int], dtype: torch.dtype) -> None:
    """silu(gate) * up in float64, rounded; gates far from zero included."""
    num_tokens, size = shape
    gate_up_T2I = 20 * draw(num_tokens, 2 * size, dtype=dtype)
    gate_up_T2I[0, :2] = torch.tensor([300.0, -300.0])
    gate, up = gate_up_T2I.double().chunk(2, dim=1)
    expected = gate / (1 + (-gate).exp()) * up
    actual = silu_and_multiply(gate_up_T2I)
    torch.testing.assert_close(actual.double(), expected, rtol=ROUNDING[dtype], atol=1e-30)


@pytest.mark.parametrize("vocabulary", [3, 256, 49153])
@pytest.mark.parametrize("dtype", DTYPES)
def test_best_token_is_the_lowest_of_equals(vocabulary: int, dtype: torch.dtype) -> None:
    """Each row's maximum, and of several the first, wherever it stands."""
    logits_SV = draw(5, vocabulary, dtype=dtype)
    logits_SV[1, [1, vocabulary - 1]] = 100.0
    logits_SV[2, vocabulary - 1] = 100.0
    logits_SV[3] = -5.0
    tokens_S, is_finite = best_tokens(logits_SV)
    assert is_finite
    assert tokens_S.tolist() == best_tokens_reference(logits_SV)[0].tolist()
    assert tokens_S.tolist()[1:4] == [1, vocabulary - 1, 0]


@pytest.mark.parametrize("place", [0, 33, 8191, 49152])
@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_a_broken_logit_is_seen(broken: float, place: int) -> None:
    """One element anywhere is enough."""
    logits_SV = draw(3, 49153, dtype=torch.float32)
    logits_SV[1, place] = broken
    assert not best_tokens(logits_SV)[1]


def columns(num_rows: int, *, temperature: float, min_p: float) -> dict[str, Tensor]:
    """Sampling columns of rows that differ in seed and position; seeds use all 64 bits."""
    rows = torch.arange(num_rows)
    return {
        "temperature_R": torch.full((num_rows,), temperature),
        "min_p_R": torch.full((num_rows,), min_p),
        "seeds_R": rows * 0x123456789ABCDEF - (1 << 62),
        "positions_R": 7 * rows + 3,
    }


@pytest.mark.parametrize("min_p", [0.0, 0.05])
@pytest.mark.parametrize("temperature", [0.3, 1.0, 5.0])
@pytest.mark.parametrize("vocabulary", [5, 1000, 20001])
def test_draws_are_those_of_the_reference(
    vocabulary: int, temperature: float, min_p: float
) -> None:
    """Two hundred rows draw the reference's tokens, and not always the best one."""
    logits_RV = 3 * draw(200, vocabulary, dtype=torch.float32)
    logits_RV[0, 1:] = -math.inf
    chosen = columns(200, temperature=temperature, min_p=min_p)
    tokens_R = draw_tokens(logits_RV, **chosen)
    assert tokens_R.tolist() == draw_tokens_reference(logits_RV, **chosen).tolist()
    assert tokens_R[0] == 0
    assert (tokens_R != logits_RV.argmax(dim=1)).sum() > 5


def test_a_tiny_temperature_draws_the_best() -> None:
    """The smallest temperature there is overflows nothing and leaves no choice."""
    logits_RV = draw(4, 300, dtype=torch.float32)
    tokens_R = draw_tokens(logits_RV, **columns(4, temperature=1e-45, min_p=0.0))
    assert tokens_R.tolist() == logits_RV.argmax(dim=1).tolist()


def test_values_that_are_no_numbers_stay_visible() -> None:
    """What is not finite in a row is not finite behind a norm or a gate, so that it is found."""
    x_TD = draw(2, 64, dtype=torch.bfloat16)
    x_TD[1, 3] = math.nan
    weight_D = torch.ones(64, dtype=torch.bfloat16)
    assert rms_norm(x_TD, weight_D, eps=1e-5).isnan().any(dim=1).tolist() == [False, True]
    assert silu_and_multiply(x_TD).isnan().any(dim=1).tolist() == [False, True]
