"""Which layers of a stage share a block table, and where in a block each has its keys and values.

A layer with a sliding window needs the blocks of its window alone, the others need all: they have
block tables of their own. All tables draw from one pool of equal blocks. Layers of one kind are spread
over so many tables that each has about as many layers as the rarest kind, so that a block, which
belongs to one table at a time, is as small as the layers of one table: of 18 layers of which 3 see
everything, those have one table and the 15 others five, and a block holds 3 layers. Every stage of a
model has the same tables, also those of which it holds no layer.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

MOST_TABLES = 8
"""More would cost the scheduler more than their blocks are worth; rare kinds waste room then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGroups:
    """The block tables of a model and the places of one stage's layers in their blocks.

    windows: of each table, in tokens; 0: its layers see everything. tables and places: of each layer
    of the stage, which table it reads, and the how many-th layer of it in a block it is.
    """

    windows: tuple[int, ...]
    tables: tuple[int, ...]
    places: tuple[int, ...]

    @property
    def num_places(self) -> int:
        """Layers of which a block of this stage holds keys and values."""
        return max(self.places, default=-1) + 1

    @classmethod
    def one(cls, num_layers: int) -> Self:
        """One table for all layers, which keeps everything."""
        return cls(windows=(0,), tables=(0,) * num_layers, places=tuple(range(num_layers)))

    @classmethod
    def of_windows(
        cls, windows: Sequence[int], layers: range, *, num_layers: int, max_model_len: int
    ) -> Self:
        """Group a stage's layers, given the sliding window of each layer of the model.

        windows: in tokens, 0: none; empty: no layer has one. A window that no sequence outgrows is none.
        """
        kept = [window if window < max_model_len else 0 for window in windows]
        if not any(kept):
            return cls.one(len(layers))
        counts = Counter(kept)
        size = max(min(counts.values()), -(-num_layers // MOST_TABLES))
        # What sees everything comes first.
        of_tables = [window for window in sorted(counts) for _ in range(-(-counts[window] // size))]
        tables_by_window = {
            window: [table for table, each in enumerate(of_tables) if each == window]
            for window in counts
        }
        dealt: Counter[int] = Counter()
        tables: list[int] = []
        places: list[int] = []
        for layer in layers:
            window = kept[layer]
            of_kind = tables_by_window[window]
            place, turn = divmod(dealt[window], len(of_kind))
            dealt[window] += 1
            tables.append(of_kind[turn])
            places.append(place)
        return cls(windows=tuple(of_tables), tables=tuple(tables), places=tuple(places))
