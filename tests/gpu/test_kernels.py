"""Every Triton kernel against torch on the device, in each type a worker computes in."""

import pytest
import torch

from tests.fakes.triton_device import DEVICE
from tests.gpu.kernel_cases import TINY, KernelCases

pytestmark = pytest.mark.gpu

TOLERANCES = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 6e-2}
NAMES = [case.name for case in KernelCases(TINY, device=torch.device("cpu"), dtype=torch.float32)]


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_kernel_equals_torch(name: str, dtype: torch.dtype) -> None:
    """Odd sizes, scattered blocks; equal but for the rounding of the type."""
    cases = KernelCases(TINY, device=DEVICE, dtype=dtype)
    case = next(case for case in cases if case.name == name)
    tolerance = TOLERANCES[dtype]
    torch.testing.assert_close(case.by_kernel(), case.by_torch(), rtol=tolerance, atol=tolerance)
