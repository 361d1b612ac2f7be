"""Growing lists of ints, one per slot, as the rows of one array: token ids and block tables.

Appending to many lists at once is a few numpy calls; nothing runs per element in Python.
"""

import numpy as np
from numpy.typing import NDArray

from common.step import Int32s, Int64s, Ragged


class SlotLists:
    """Lists of at most `width` int32 each. Values beyond a list's length have no meaning."""

    def __init__(self, *, num_slots: int, width: int) -> None:
        self.values: NDArray[np.int32] = np.zeros((num_slots, width), dtype=np.int32)
        self.lengths: NDArray[np.int32] = np.zeros(num_slots, dtype=np.int32)

    @property
    def width(self) -> int:
        """Most values of a list."""
        return self.values.shape[1]

    def grow(self, num_slots: int) -> None:
        """Make room for num_slots lists; the existing ones stay."""
        added = num_slots - len(self.lengths)
        self.values = np.concatenate([self.values, np.zeros((added, self.width), np.int32)])
        self.lengths = np.concatenate([self.lengths, np.zeros(added, np.int32)])

    def replace(self, slot: int, row: Int32s) -> None:
        """Make `row` the list of a slot."""
        self.values[slot, : len(row)] = row
        self.lengths[slot] = len(row)

    def extend(self, slots: Int64s, rows: Ragged) -> None:
        """Append row i to the list of slots[i]; the slots are distinct."""
        self.write_behind(slots, rows)
        self.lengths[slots] += rows.lengths.astype(np.int32)

    def write_behind(self, slots: Int64s, rows: Ragged) -> None:
        """Write row i where the list of slots[i] would go on, without making it longer."""
        if len(rows.values):
            row_of_value = np.repeat(np.arange(rows.num_rows), rows.lengths)
            within_row = np.arange(len(rows.values)) - rows.offsets[:-1][row_of_value]
            columns = self.lengths[slots][row_of_value] + within_row
            self.values[slots[row_of_value], columns] = rows.values

    def row(self, slot: int) -> Int32s:
        """The list of a slot, a view."""
        return self.values[slot, : self.lengths[slot]]
