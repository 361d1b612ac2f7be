"""The digest both services compute of the live requests."""

import hashlib

import numpy as np
import pytest

from common.state_digest import state_digest

ROWS = [(3, [[7, 8]], 5), (1, [[2]], 4)]


def test_bytes_are_as_documented() -> None:
    """Whoever follows the layout gets the same digest; the order of the rows does not count."""
    spelled = (
        "0200000000000000"
        "0100000000000000 0400000000000000 0100000000000000 0100000000000000 02000000"
        "0300000000000000 0500000000000000 0100000000000000 0200000000000000 07000000 08000000"
    )
    expected = hashlib.sha256(bytes.fromhex(spelled)).digest()
    assert state_digest(ROWS) == state_digest(reversed(ROWS)) == expected


def test_ints_and_arrays_are_the_same_table() -> None:
    """A scheduler keeps lists and a worker views of arrays: equal tables are equal."""
    table = np.array([[9, 7, 9, 8]], dtype=np.int32)[0, 1::2]
    assert state_digest([(3, [table], 5)]) == state_digest([(3, [[7, 8]], 5)])


@pytest.mark.parametrize(
    "rows",
    [
        [(3, [[7, 8]], 5)],
        [(3, [[7, 8]], 5), (2, [[2]], 4)],
        [(3, [[7, 8]], 6), (1, [[2]], 4)],
        [(3, [[8, 7]], 5), (1, [[2]], 4)],
        [(3, [[7]], 5), (1, [[2]], 4)],
        [(3, [[7], [8]], 5), (1, [[2]], 4)],
        [(3, [[7, 8], []], 5), (1, [[2]], 4)],
    ],
    ids=["rows", "handle", "computed", "order of blocks", "blocks", "groups", "empty group"],
)
def test_every_part_counts(rows) -> None:
    """Another set of requests, handle, count, table or number of groups gives another digest."""
    assert state_digest(rows) != state_digest(ROWS)
