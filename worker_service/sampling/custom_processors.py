"""Logits processors of the operator's own, found by entry point.

A distribution that is installed beside the worker names a class under the group
`stepwire.logits_processors`; the entry point's name is the one clients use in the request's extra
arguments, and a row is processed when its request has an argument of that name. Arguments are checked
here, where the class is, as the coordinator never loads what may import torch: it only knows the names,
from the worker's description. A processor that fails, fails its request alone.
"""

import json
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol

from torch import Tensor

from common.errors import ModelError
from common.step import Int32s
from worker_service.sampling.processors import EditedRow

GROUP = "stepwire.logits_processors"


class CustomProcessor(Protocol):
    """What an entry point of the group names; made once, without arguments."""

    def apply(
        self, logits_V: Tensor, *, argument: Any, prompt_ids: Int32s, output_ids: Int32s
    ) -> Tensor:
        """The logits float32 [V] the token is drawn from; those given may be written to.

        argument: what the client sent, as parsed JSON. Must be a function of what it is given, as
        drafts are checked and tokens drawn again after a loss. Whatever it raises fails the request.
        """
        ...


class CustomProcessors:
    """The installed processors by name."""

    def __init__(self, processors: dict[str, CustomProcessor]) -> None:
        self._processors = processors

    @property
    def names(self) -> tuple[str, ...]:
        """Sorted names."""
        return tuple(sorted(self._processors))

    def apply(self, logits_SV: Tensor, rows: Sequence[EditedRow]) -> dict[int, str]:
        """Edit the logits of the rows that ask for it; the rows that failed, with their causes."""
        failures: dict[int, str] = {}
        for each in rows:
            for name, argument in each.params.extra_args:
                try:
                    logits_SV[each.row] = self._processors[name].apply(
                        logits_SV[each.row],
                        argument=json.loads(argument),
                        prompt_ids=each.prompt_ids,
                        output_ids=each.output_ids,
                    )
                except Exception as error:  # noqa: BLE001 - it is not our code
                    failures[each.row] = f"logits processor {name!r}: {error!r}"
        return failures


def load_custom_processors(found: Sequence[EntryPoint] | None = None) -> CustomProcessors:
    """Load and make every installed processor; raises ModelError naming one that does not load."""
    processors: dict[str, CustomProcessor] = {}
    for entry in entry_points(group=GROUP) if found is None else found:
        try:
            processors[entry.name] = entry.load()()
        except Exception as error:
            raise ModelError(f"logits processor {entry.name!r} does not load: {error!r}") from error
    return CustomProcessors(processors)
