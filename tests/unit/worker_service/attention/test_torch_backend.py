"""How the torch backend plans a step; what it computes, the contract suite says."""

import pytest

from tests.fakes.paged_steps import Row, step_metadata
from worker_service.attention.torch_backend import TorchBackend
from worker_service.attention.torch_plan import TileSizes

SIZES = {
    "one tile": TileSizes(),
    "small tiles": TileSizes(decode=40, chunk=7),
    "tiny tiles": TileSizes(decode=5, chunk=3),
}


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_gathers_follow_lengths(sizes: TileSizes) -> None:
    """A plan reads each row's context once, but for the padding of ragged decode tiles."""
    rows = [
        Row(blocks=list(range(1, 11)), num_cached=30, num_tokens=10),
        Row(blocks=list(range(11, 16)), num_cached=19, num_tokens=1),
        Row(blocks=list(range(16, 21)), num_cached=17, num_tokens=1),
        Row(blocks=[21, 22], num_cached=0, num_tokens=8),
    ]
    plan = TorchBackend(sizes).plan(step_metadata(rows, block_size=4), num_kv_heads=1)
    behind_context, prompt = plan.chunks
    assert sum(map(len, behind_context.tiles)) == 40
    assert all(len(slots) <= sizes.chunk for slots in behind_context.tiles)
    assert prompt.tiles == ()
    assert plan.decodes is not None
    tiles = [tile for group in plan.decodes.groups for tile in group.tiles]
    assert sum(len(tile.slots_F) for tile in tiles) <= 2 * 20
    assert all(len(tile.slots_F) <= sizes.decode for tile in tiles)
