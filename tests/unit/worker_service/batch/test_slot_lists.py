"""Growing lists in slots."""

import numpy as np

from common.step import Ragged
from worker_service.batch.slot_lists import SlotLists


def test_extend_appends_each_row_to_its_own_slot():
    """Rows of different lengths, an empty one among them, land behind what each slot held."""
    lists = SlotLists(num_slots=4, width=6)
    lists.replace(2, np.array([7, 8], np.int32))
    lists.extend(np.array([2, 0, 3]), Ragged.from_rows([[9], [], [1, 2, 3]]))
    lists.extend(np.array([3, 2]), Ragged.from_rows([[4], [10, 11]]))
    rows = [lists.row(slot).tolist() for slot in range(4)]
    assert rows == [[], [], [7, 8, 9, 10, 11], [1, 2, 3, 4]]


def test_replace_forgets_the_longer_list():
    """A slot that is reused shows nothing of its former list."""
    lists = SlotLists(num_slots=1, width=3)
    lists.replace(0, np.array([1, 2, 3], np.int32))
    lists.replace(0, np.array([4], np.int32))
    assert lists.row(0).tolist() == [4]


def test_growing_keeps_the_lists():
    """New slots are empty and old ones unchanged."""
    lists = SlotLists(num_slots=1, width=3)
    lists.replace(0, np.array([1, 2], np.int32))
    lists.grow(3)
    assert [lists.row(slot).tolist() for slot in range(3)] == [[1, 2], [], []]
