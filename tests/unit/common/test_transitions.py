"""State machines as tables."""

from enum import Enum, auto

import pytest

from common.errors import WrongState
from common.transitions import Transitions


class Lamp(Enum):
    """States."""

    OFF = auto()
    ON = auto()


class Press(Enum):
    """Events."""

    SWITCH_ON = auto()
    SWITCH_OFF = auto()


LAMP = Transitions({(Lamp.OFF, Press.SWITCH_ON): Lamp.ON, (Lamp.ON, Press.SWITCH_OFF): Lamp.OFF})


def test_pair_of_the_table():
    """A pair of the table leads to its state."""
    assert LAMP.next(Lamp.OFF, Press.SWITCH_ON) is Lamp.ON


def test_missing_pair_names_both():
    """A missing pair raises WrongState naming the event and the state."""
    with pytest.raises(WrongState, match="switch_on is not legal in state ON"):
        LAMP.next(Lamp.ON, Press.SWITCH_ON)
