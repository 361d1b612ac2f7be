"""Packed weights against products in float64, on every instruction set this machine has."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from tests.fakes.native_isa import native_isa
from worker_service.kernels.native import Isa, NativeKernels, native_kernels
from worker_service.kernels.packed_weight import Bf16Weight, PlainWeight, select_packer
from worker_service.kernels.weight_memory import WeightMemory

# T rows, I inputs, O outputs

CPU = torch.device("cpu")

SHAPES = (
    (1, 1, 1),
    (1, 576, 960),
    (3, 33, 5),
    (4, 64, 48),
    (7, 6, 49),
    (8, 100, 96),
    (9, 128, 97),
    (33, 1536, 50),
    (65, 31, 144),
    (130, 4500, 20),
    (64, 4097, 3),
)


@pytest.fixture(params=[Isa.AVX512_BF16, Isa.AVX2])
def kernels(request: pytest.FixtureRequest) -> Iterator[NativeKernels]:
    """The native kernels on one instruction set, with two threads."""
    with native_isa(request.param, num_threads=2) as kernels:
        yield kernels


def pack(w_OI: Tensor, kernels: NativeKernels) -> Bf16Weight:
    """The weight in the kernel's order, in memory of its own."""
    return Bf16Weight(w_OI, kernels, WeightMemory(mapping_bytes=1))


def draw(*shape: int, seed: int = 0) -> Tensor:
    """Seeded normal bfloat16 values."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).bfloat16()


def exact(x_TI: Tensor, w_OI: Tensor, bias_O: Tensor | None) -> Tensor:
    """The product of the same rounded values in float64."""
    y_TO = x_TI.double() @ w_OI.double().T
    return y_TO if bias_O is None else y_TO + bias_O.double()


@pytest.mark.parametrize(("rows", "inputs", "outputs"), SHAPES)
@pytest.mark.parametrize("has_bias", [False, True])
def test_float_outputs_are_sums_of_exact_products(
    kernels: NativeKernels, rows: int, inputs: int, outputs: int, *, has_bias: bool
):
    """float32 outputs are off by no more than float32 sums of so many terms may be."""
    x_TI, w_OI = draw(rows, inputs), draw(outputs, inputs, seed=1)
    bias_O = draw(outputs, seed=2) if has_bias else None
    y_TO = pack(w_OI, kernels).multiply(x_TI, bias_O, dtype=torch.float32)
    bound_TO = exact(x_TI.abs(), w_OI.abs(), None if bias_O is None else bias_O.abs())
    error_TO = (y_TO.double() - exact(x_TI, w_OI, bias_O)).abs()
    assert (error_TO <= bound_TO * (inputs + 1) * 2**-24).all()


@pytest.mark.parametrize(("rows", "inputs", "outputs"), SHAPES)
def test_bfloat16_outputs_are_the_rounded_float_outputs(
    kernels: NativeKernels, rows: int, inputs: int, outputs: int
):
    """Nothing is lost but by one rounding to the nearest bfloat16, ties to even."""
    weight = pack(draw(outputs, inputs, seed=1), kernels)
    x_TI, bias_O = draw(rows, inputs), draw(outputs, seed=2)
    rounded_TO = weight.multiply(x_TI, bias_O)
    assert rounded_TO.dtype == torch.bfloat16
    assert torch.equal(rounded_TO, weight.multiply(x_TI, bias_O, dtype=torch.float32).bfloat16())


def test_rows_do_not_depend_on_their_batch(kernels: NativeKernels):
    """A row gives the same bits alone and among others, so batching changes no token."""
    weight, x_TI = pack(draw(100, 300), kernels), draw(75, 300, seed=1)
    together_TO = weight.multiply(x_TI, dtype=torch.float32)
    alone_TO = torch.cat([weight.multiply(x_I[None], dtype=torch.float32) for x_I in x_TI])
    assert torch.equal(together_TO, alone_TO)


def test_infinity_and_nan_pass_through(kernels: NativeKernels):
    """Special values reach exactly the rows they stand in."""
    x_TI = torch.tensor([[1.0, 2.0], [torch.inf, 1.0], [torch.nan, 1.0]]).bfloat16()
    y_TO = pack(torch.ones(3, 2).bfloat16(), kernels).multiply(x_TI)
    assert y_TO[0].tolist() == [3, 3, 3]
    assert y_TO[1].isposinf().all()
    assert y_TO[2].isnan().all()


def test_inputs_may_be_a_view(kernels: NativeKernels):
    """Rows and weights that are not dense in memory are read where they stand."""
    wide, w_IO = draw(5, 40), draw(20, 7, seed=1)
    y_TO = pack(w_IO.T, kernels).multiply(wide[:, 10:30])
    assert torch.equal(y_TO, pack(w_IO.T.contiguous(), kernels).multiply(wide[:, 10:30].clone()))


def test_no_rows_give_no_rows(kernels: NativeKernels):
    """A step without rows for a layer is no special case."""
    assert pack(draw(3, 4), kernels).multiply(draw(0, 4)).shape == (0, 3)


@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_calls_of_several_threads_do_not_mix(kernels: NativeKernels, num_threads: int):
    """The pool serves one caller at a time, the others work alone; all results are right."""
    kernels.set_num_threads(num_threads)
    weight = pack(draw(960, 576), kernels)
    inputs = [draw(seed % 5 + 1, 576, seed=seed) for seed in range(8)]
    expected = [weight.multiply(x_TI) for x_TI in inputs]
    with ThreadPoolExecutor(4) as callers:
        for _ in range(50):
            results = list(callers.map(weight.multiply, inputs))
            assert all(map(torch.equal, results, expected))


def test_plain_weight_is_functional_linear():
    """The reference multiplies as torch does and widens what was rounded."""
    x_TI, w_OI, bias_O = draw(3, 8), draw(5, 8, seed=1), draw(5, seed=2)
    expected_TO = torch.nn.functional.linear(x_TI, w_OI, bias_O)
    weight = PlainWeight(w_OI)
    assert torch.equal(weight.multiply(x_TI, bias_O), expected_TO)
    assert torch.equal(weight.multiply(x_TI, bias_O, dtype=torch.float32), expected_TO.float())
    assert weight.num_bytes == 5 * 8 * 2


def test_other_dtypes_stay_with_torch():
    """Only bfloat16 has a kernel."""
    assert select_packer(dtype=torch.float32, device=CPU) is None
    assert select_packer(dtype=torch.float16, device=CPU) is None


def test_bfloat16_is_packed_where_kernels_are():
    """A machine with kernels holds bfloat16 weights in their form, one without as loaded."""
    packer = select_packer(dtype=torch.bfloat16, device=CPU)
    assert (packer is not None) == (native_kernels() is not None)
