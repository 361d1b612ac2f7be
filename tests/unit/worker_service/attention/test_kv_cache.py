"""The memory of a paged KV cache."""

from tests.fakes.paged_steps import small_cache


def test_every_layer_has_a_slot_for_each_token_of_a_block() -> None:
    """Keys and values are head-major over all slots, and num_bytes counts both of every layer."""
    cache = small_cache(num_layers=3, num_kv_heads=2, head_size=8, num_blocks=5, block_size=4)
    assert cache.num_layers == 3
    for layer in range(3):
        assert [tensor.shape for tensor in cache.slots(layer)] == [(2, 20, 8), (2, 20, 8)]
    assert cache.num_bytes == 3 * 2 * (2 * 20 * 8) * 4
