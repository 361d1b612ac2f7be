"""Several outputs of one request, read as one stream: whichever has news comes next."""

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import TypeAlias

from coordinator.engine.generation import TextDelta
from coordinator.engine.text_stream import TextStream


class OutputGroup:
    """Iterates over the deltas of all outputs, each with its index, until the last one has ended.

    An error of one output ends all of them: a request is answered whole or not at all. Close it in
    every case; as an asynchronous context manager it closes itself.
    """

    def __init__(self, outputs: Sequence[TextStream]) -> None:
        """Read from outputs, which stand in the order of their indices."""
        self._outputs = outputs
        self._waits: dict[int, asyncio.Task[TextDelta]] = {}
        self._ready: asyncio.Queue[int] = asyncio.Queue()
        self._num_open = len(outputs)
        self._is_closed = False

    def __aiter__(self) -> "OutputGroup":
        """Be its own iterator: outputs are read once."""
        return self

    async def __anext__(self) -> TextDelta:
        """Wait for the next delta of any output; raises the ServiceError that ended one."""
        if self._is_closed or not self._num_open:
            raise StopAsyncIteration
        if not self._waits:
            for position in range(len(self._outputs)):
                self._wait_for(position)
        try:
            position = await self._ready.get()
            delta = self._waits[position].result()
        except BaseException:
            await self.aclose()
            raise
        if delta.finish_reason is None:
            self._wait_for(position)
        else:
            self._num_open -= 1
        return delta

    async def aclose(self) -> None:
        """Free every sequence that still runs."""
        if self._is_closed:
            return
        self._is_closed = True
        waits = list(self._waits.values())
        for wait in waits:
            wait.cancel()
        try:
            await asyncio.gather(*waits, return_exceptions=True)
        finally:
            for output in self._outputs:
                await output.aclose()

    async def __aenter__(self) -> "OutputGroup":
        """Hand out the group."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the group."""
        await self.aclose()

    def _wait_for(self, position: int) -> None:
        output = self._outputs[position]
        wait = asyncio.create_task(output.__anext__(), name=f"output {output.index}")
        wait.add_done_callback(lambda _: self._ready.put_nowait(position))
        self._waits[position] = wait


Outputs: TypeAlias = TextStream | OutputGroup
"""What a request gives: one output is read as it is, without the cost of a group."""
