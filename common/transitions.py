"""Table-driven state machines: what may follow what is data, and a missing pair is an error."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from common.errors import WrongState

State = TypeVar("State", bound=Enum)
Event = TypeVar("Event", bound=Enum)


@dataclass(frozen=True, slots=True)
class Transitions(Generic[State, Event]):
    """Maps (state, event) to the next state; holds no state itself."""

    table: Mapping[tuple[State, Event], State]

    def next(self, state: State, event: Event) -> State:
        """The state after an event; raises WrongState naming both when the table has no such pair."""
        try:
            return self.table[state, event]
        except KeyError:
            raise WrongState(f"{event.name.lower()} is not legal in state {state.name}") from None
