"""Pieces of large mappings for packed weights."""

import torch

from worker_service.kernels.weight_memory import WeightMemory


def test_pieces_follow_one_another():
    """What is made next is read next: it begins at the next cache line."""
    memory = WeightMemory()
    first, second = memory.take(100, torch.bfloat16), memory.take(3, torch.float32)
    assert (len(first), len(second)) == (100, 3)
    assert second.data_ptr() - first.data_ptr() == 256


def test_mappings_begin_huge_pages():
    """The first piece of a mapping stands on a multiple of 2 MiB."""
    assert WeightMemory(mapping_bytes=1).take(1, torch.uint8).data_ptr() % (2 << 20) == 0


def test_pieces_are_zero_and_do_not_overlap():
    """Writing to one piece changes no other, within a mapping and across mappings."""
    memory = WeightMemory(mapping_bytes=4096)
    pieces = [memory.take(size, torch.uint8) for size in (1, 4000, 3 << 20, 64, 65)]
    for value, piece in enumerate(pieces, start=1):
        assert not piece.any()
        piece.fill_(value)
    assert [piece.unique().tolist() for piece in pieces] == [[1], [2], [3], [4], [5]]


def test_a_piece_outlives_its_memory():
    """A piece holds its mapping."""
    piece = WeightMemory().take(5, torch.float32)
    assert piece.add_(1).tolist() == [1, 1, 1, 1, 1]
