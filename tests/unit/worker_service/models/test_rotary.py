"""The rotation of a step's positions."""

import pytest
import torch

from worker_service.models.layers.rotary import RotaryEmbedding
from worker_service.models.model_spec import RopeSpec

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tables_grow_with_the_positions(dtype: torch.dtype) -> None:
    """Positions near and far, in any order and in either dtype, turn by position * frequency."""
    rotary = RotaryEmbedding(8, rope=RopeSpec(theta=10000.0), device=CPU)
    for positions in ([0], [5, 3], [1023], [1024, 0], [9000, 70000], [2]):
        rotation = rotary(torch.tensor(positions), dtype=dtype)
        angles = torch.tensor(positions)[:, None].float() * rotary.frequencies
        assert torch.equal(rotation.cos_T1D[:, 0, :4], angles.cos().to(dtype))
        assert torch.equal(rotation.cos_T1D[:, 0, 4:], angles.cos().to(dtype))
        assert torch.equal(rotation.sin_T1D[:, 0, :4], -angles.sin().to(dtype))
        assert torch.equal(rotation.sin_T1D[:, 0, 4:], angles.sin().to(dtype))


def test_another_dtype_has_its_own_values() -> None:
    """One embedding serves float32 after bfloat16 without their rounding."""
    rotary = RotaryEmbedding(8, rope=RopeSpec(theta=10000.0), device=CPU)
    rotary(torch.tensor([7]), dtype=torch.bfloat16)
    rotation = rotary(torch.tensor([7]), dtype=torch.float32)
    assert torch.equal(rotation.sin_T1D[0, 0, 4:], (7 * rotary.frequencies).sin())
