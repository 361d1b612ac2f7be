"""Quantized weights: what the integers stand for, and products by them on every instruction set."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from tests.fakes.native_isa import native_isa
from worker_service.kernels.int4_weight import (
    Int4Numbers,
    NativeInt4Weight,
    PlainInt4Weight,
    quantize_int4,
)
from worker_service.kernels.int8_weight import (
    Int8Numbers,
    NativeInt8Weight,
    PlainInt8Weight,
    quantize_int8,
)
from worker_service.kernels.native import Isa, NativeKernels
from worker_service.kernels.packed_weight import PackedWeight
from worker_service.kernels.weight_memory import WeightMemory

# T rows, I inputs, O outputs

SHAPES = (
    (1, 1, 1),
    (1, 576, 960),
    (2, 33, 5),
    (3, 64, 32),
    (7, 100, 33),
    (8, 1536, 70),
    (9, 62, 64),
    (33, 96, 50),
    (129, 130, 40),
    (300, 32, 31),
)

Numbers = Int8Numbers | Int4Numbers
Quantize = Callable[[Tensor], Numbers]


@pytest.fixture(params=[Isa.AVX512_BF16, Isa.AVX2], ids=lambda isa: isa.name)
def kernels(request: pytest.FixtureRequest) -> Iterator[NativeKernels]:
    """The native kernels on one instruction set, with two threads."""
    with native_isa(request.param, num_threads=2) as kernels:
        yield kernels


def draw(*shape: int, seed: int = 0) -> Tensor:
    """Seeded normal values."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def native(numbers: Numbers, kernels: NativeKernels) -> PackedWeight:
    """The integers in the kernel's order, in memory of their own."""
    memory = WeightMemory(mapping_bytes=1)
    if isinstance(numbers, Int8Numbers):
        return NativeInt8Weight(numbers, kernels, memory)
    return NativeInt4Weight(numbers, kernels, memory)


def plain(numbers: Numbers) -> PackedWeight:
    """The reference of the same integers."""
    if isinstance(numbers, Int8Numbers):
        return PlainInt8Weight(numbers)
    return PlainInt4Weight(numbers)


both = pytest.mark.parametrize("quantize", [quantize_int8, quantize_int4])


@pytest.mark.parametrize(("rows", "inputs", "outputs"), SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@both
def test_native_products_are_those_of_the_numbers(
    kernels: NativeKernels,
    quantize: Quantize,
    dtype: torch.dtype,
    rows: int,
    inputs: int,
    outputs: int,
):
    """float32 outputs are off by no more than float32 sums of so many terms may be."""
    numbers = quantize(draw(outputs, inputs, seed=1))
    x_TI, bias_O = draw(rows, inputs).to(dtype), draw(outputs, seed=2).to(dtype)
    y_TO = native(numbers, kernels).multiply(x_TI, bias_O, dtype=torch.float32)
    w_OI = numbers.plain().double()
    exact_TO = x_TI.double() @ w_OI.T + bias_O.double()
    # The int4 kernel adds a center to a scaled sum, each of which may be larger than a weight.
    bound_TO = x_TI.double().abs() @ (w_OI.abs() + 4 * w_OI.abs().amax()).T + bias_O.double().abs()
    assert ((y_TO.double() - exact_TO).abs() <= bound_TO * (inputs + 4) * 2**-24).all()


@pytest.mark.parametrize("rows", [1, 5, 40])
@both
def test_bfloat16_outputs_are_the_rounded_float_outputs(
    kernels: NativeKernels, quantize: Quantize, rows: int
):
    """Nothing is lost but by one rounding to the nearest bfloat16, ties to even."""
    weight = native(quantize(draw(70, 96, seed=1)), kernels)
    x_TI, bias_O = draw(rows, 96).bfloat16(), draw(70, seed=2).bfloat16()
    rounded_TO = weight.multiply(x_TI, bias_O)
    assert rounded_TO.dtype == torch.bfloat16
    assert torch.equal(rounded_TO, weight.multiply(x_TI, bias_O, dtype=torch.float32).bfloat16())


@both
def test_rows_do_not_depend_on_their_batch(quantize: Quantize):
    """With AVX-512 a row gives the same bits alone and among others, so batching changes no token."""
    with native_isa(Isa.AVX512_BF16, num_threads=2) as kernels:
        weight = native(quantize(draw(100, 300)), kernels)
        x_TI = draw(75, 300, seed=1).bfloat16()
        together_TO = weight.multiply(x_TI, dtype=torch.float32)
        alone_TO = [weight.multiply(x_I[None], dtype=torch.float32) for x_I in x_TI]
    assert torch.equal(together_TO, torch.cat(alone_TO))


@both
def test_reference_multiplies_by_the_plain_weight(quantize: Quantize):
    """In float32 the reference is functional.linear of what the integers stand for."""
    numbers = quantize(draw(20, 45, seed=1))
    x_TI, bias_O = draw(3, 45), draw(20, seed=2)
    expected_TO = torch.nn.functional.linear(x_TI, numbers.plain(), bias_O)
    torch.testing.assert_close(plain(numbers).multiply(x_TI, bias_O), expected_TO)
    assert plain(numbers).multiply(x_TI.bfloat16(), dtype=torch.float32).dtype == torch.float32


@both
def test_float16_rows_get_float16_results(kernels: NativeKernels, quantize: Quantize):
    """The kernels know no float16, so it is widened on the way in and rounded on the way out."""
    numbers = quantize(draw(20, 64, seed=1))
    x_TI = draw(3, 64).half()
    y_TO = native(numbers, kernels).multiply(x_TI)
    assert y_TO.dtype == torch.float16
    torch.testing.assert_close(y_TO, plain(numbers).multiply(x_TI.float()).half())


def test_int8_weights_are_off_by_half_a_step():
    """A step is a 127th of the output's largest weight, which itself is kept."""
    w_OI = draw(10, 200)
    numbers = quantize_int8(w_OI)
    largest_O = w_OI.abs().amax(dim=1)
    error_OI = (numbers.plain() - w_OI).abs()
    assert (error_OI <= (largest_O / 127 * 0.5001)[:, None]).all()
    torch.testing.assert_close(numbers.plain().abs().amax(dim=1), largest_O)


def test_int4_weights_are_off_by_half_a_step():
    """A step is a 15th of the group's range, plus what rounding scale and center costs."""
    w_OI = draw(10, 96)
    error_OGM = (quantize_int4(w_OI).plain() - w_OI).abs().unflatten(1, (3, 32))
    w_OGM = w_OI.unflatten(1, (3, 32))
    step_OG = (w_OGM.amax(dim=-1) - w_OGM.amin(dim=-1)) / 15
    assert (error_OGM <= 0.57 * step_OG[..., None]).all()


def test_int4_groups_have_scales_of_their_own():
    """A large weight makes its own group coarse and no other."""
    w_OI = draw(1, 64)
    exact_OI = quantize_int4(w_OI).plain()[:, :32]
    w_OI[0, 40] = 1000
    assert torch.equal(quantize_int4(w_OI).plain()[:, :32], exact_OI)


@pytest.mark.parametrize("value", [0.0, 0.5])
@both
def test_equal_weights_are_exact(kernels: NativeKernels, quantize: Quantize, value: float):
    """An output whose weights are all equal, zero too, loses nothing and divides by no zero."""
    numbers = quantize(torch.full((3, 40), value))
    assert torch.equal(numbers.plain(), torch.full((3, 40), value))
    y_TO = native(numbers, kernels).multiply(torch.ones(2, 40))
    torch.testing.assert_close(y_TO, torch.full((2, 3), 40 * value))


@pytest.mark.parametrize(("quantize", "bits"), [(quantize_int8, 8.06), (quantize_int4, 5.0)])
def test_weights_take_few_bytes(kernels: NativeKernels, quantize: Quantize, bits: float):
    """A weight takes 8 bits and a share of its scale, or 5 bits with those of its group."""
    numbers = quantize(draw(64, 576))
    for weight in (plain(numbers), native(numbers, kernels)):
        assert weight.num_bytes * 8 / (64 * 576) == pytest.approx(bits, abs=0.01)


@both
def test_no_rows_give_no_rows(kernels: NativeKernels, quantize: Quantize):
    """A step without rows for a layer is no special case."""
    assert native(quantize(draw(3, 4)), kernels).multiply(draw(0, 4)).shape == (0, 3)
