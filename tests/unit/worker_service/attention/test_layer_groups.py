"""Which layers share a block table, and the memory that follows."""

import pytest
import torch

from worker_service.attention.kv_cache import KVCache
from worker_service.attention.layer_groups import MOST_TABLES, LayerGroups
from worker_service.runner.memory import kv_cache_spec

GEMMA = ((512,) * 5 + (0,)) * 3
"""Gemma 3 270M: of 18 layers every sixth sees everything."""


def groups(
    windows: tuple[int, ...], layers: range | None = None, *, length: int = 4096
) -> LayerGroups:
    """The groups of a stage, by default of the whole model."""
    return LayerGroups.of_windows(
        windows,
        range(len(windows)) if layers is None else layers,
        num_layers=len(windows),
        max_model_len=length,
    )


def test_no_windows_one_table():
    """Every layer has a place of its own."""
    assert groups((0, 0, 0)) == LayerGroups.one(3)
    assert groups(()) == LayerGroups.one(0)


def test_a_window_no_sequence_outgrows_is_none():
    """Sequences of 512 tokens fit a window of 512."""
    assert groups(GEMMA, length=512) == LayerGroups.one(18)


def test_all_windows_alike_are_one_table():
    """Mistral's layers all see as much."""
    made = groups((64,) * 4)
    assert (made.windows, made.places) == ((64,), (0, 1, 2, 3))


def test_tables_have_as_many_layers_as_the_rarest_kind():
    """Three layers that see everything: 15 with a window have five tables of three."""
    made = groups(GEMMA)
    assert made.windows == (0, 512, 512, 512, 512, 512)
    assert made.num_places == 3
    assert sorted(zip(made.tables, made.places, strict=True)) == [
        (table, place) for table in range(6) for place in range(3)
    ]


@pytest.mark.parametrize("cut", [1, 6, 9, 17])
def test_stages_have_the_same_tables(cut: int):
    """However the layers are cut; a stage's block holds what its fullest table has of it."""
    first, last = groups(GEMMA, range(cut)), groups(GEMMA, range(cut, 18))
    assert first.windows == last.windows == groups(GEMMA).windows
    for stage, windows in ((first, GEMMA[:cut]), (last, GEMMA[cut:])):
        assert [stage.windows[table] for table in stage.tables] == list(windows)
        places = list(zip(stage.tables, stage.places, strict=True))
        assert len(set(places)) == len(places)


def test_tables_are_few():
    """One layer in 40 that sees everything does not make 40 tables."""
    assert len(groups((64,) * 39 + (0,)).windows) <= MOST_TABLES + 1


def test_layers_of_different_tables_share_memory():
    """A block belongs to one table at a time, so the cache is as large as three layers, not 18."""
    made = groups(GEMMA)
    spec = kv_cache_spec(
        num_layers=made.num_places,
        num_kv_heads=1,
        head_size=256,
        block_size=16,
        dtype=torch.bfloat16,
    )
    cache = KVCache.allocate(
        spec, num_blocks=10, device=torch.device("cpu"), dtype=torch.bfloat16, groups=made
    )
    assert cache.num_layers == 18
    assert cache.num_bytes == 10 * spec.bytes_per_block == 10 * 16 * 3 * 2 * 256 * 2
    addresses = {cache.slots(layer)[0].data_ptr() for layer in range(18)}
    assert len(addresses) == 3
