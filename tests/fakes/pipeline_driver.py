"""Drives the workers of one pipeline as a coordinator would, one greedy sequence at a time.

Plans its steps by hand, so that what is tested is the workers and not a scheduler.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import numpy as np

from common.requests import SamplingParams
from common.step import (
    CachedRequests,
    IntermediateTensors,
    ModelRunnerOutput,
    NewRequest,
    Ragged,
    SchedulerOutput,
)
from common.worker_api import ExecuteModel, LoadModel, WorkerApi
from tests.fakes.manual_steps import GENERATION, step_id
from tests.fakes.worker_setup import AUTHORITY, BLOCK_SIZE, join, load_request, warm_up

RunStep = Callable[[SchedulerOutput], Awaitable[ModelRunnerOutput]]


class PipelineDriver:
    """The workers in stage order, the number of the last step, and the handles given out."""

    def __init__(self, workers: Sequence[WorkerApi], *, model: str, num_layers: int) -> None:
        self.workers = workers
        self.last = workers[-1]
        self.step = 0
        self._model = model
        self._num_layers = num_layers
        self._handle = 0

    def load_request(self, stage: int) -> LoadModel:
        """An even share of the layers."""
        return load_request(
            self._model, stage=stage, num_stages=len(self.workers), num_layers=self._num_layers
        )

    async def bring_up(self) -> None:
        """Take fresh workers through their lifecycle until they serve."""
        await asyncio.gather(
            *(
                warm_up(worker, self.load_request(stage))
                for stage, worker in enumerate(self.workers)
            )
        )
        await join(self.workers)

    async def end(self) -> None:
        """Release the workers from the generation."""
        for worker in self.workers:
            await worker.end_generation(AUTHORITY, GENERATION)

    async def generate(
        self, prompt: Sequence[int], num_tokens: int, *, run: RunStep
    ) -> tuple[int, ...]:
        """Greedy tokens after a prompt, one a step; the request is dropped at the end."""
        output = self.prefill(prompt)
        token_ids = [*prompt, await _token(run, output)]
        while len(token_ids) < len(prompt) + num_tokens:
            output = self.decode(num_known=len(token_ids), new_token_id=token_ids[-1])
            token_ids.append(await _token(run, output))
        await self.run_by_stream(self.drop())
        return tuple(token_ids[len(prompt) :])

    def prefill(self, prompt: Sequence[int]) -> SchedulerOutput:
        """The next step, with a new request's whole prompt."""
        self._handle += 1
        request = NewRequest(
            handle=self._handle,
            token_ids=np.array(prompt, dtype=np.int32),
            num_prompt_tokens=len(prompt),
            sampling=SamplingParams(temperature=0.0),
            block_ids=(np.array(_blocks(0, len(prompt)), dtype=np.int32),),
            num_computed_tokens=0,
        )
        return self._plan(
            new_requests=(request,),
            num_scheduled_tokens=np.array([len(prompt)], dtype=np.int32),
        )

    def decode(self, *, num_known: int, new_token_id: int) -> SchedulerOutput:
        """The next step, with the one token that makes num_known of the request in hand."""
        cached = CachedRequests(
            handles=np.array([self._handle], dtype=np.uint64),
            num_computed_tokens=np.array([num_known - 1], dtype=np.int32),
            new_block_ids=(Ragged.from_rows([_blocks(num_known - 1, num_known)]),),
            new_token_ids=Ragged.from_rows([[new_token_id]]),
            token_source_steps=np.zeros(1, dtype=np.uint64),
        )
        return self._plan(
            cached_requests=cached, num_scheduled_tokens=np.array([1], dtype=np.int32)
        )

    def drop(self) -> SchedulerOutput:
        """The next step, without tokens, that finishes the request in hand."""
        return self._plan(finished_handles=np.array([self._handle], dtype=np.uint64))

    def idle(self) -> SchedulerOutput:
        """The next step, with nothing in it."""
        return self._plan()

    async def run_by_stream(self, output: SchedulerOutput) -> ModelRunnerOutput:
        """Submit a step to all workers at once, as the executor does."""
        futures = [
            worker.submit_step(output, sample=worker is self.last and output.num_rows > 0)
            for worker in self.workers
        ]
        result = (await asyncio.gather(*futures))[-1]
        assert isinstance(result, ModelRunnerOutput)
        return result

    async def run_by_calls(self, output: SchedulerOutput) -> ModelRunnerOutput:
        """Run a step by the plain calls, carrying each stage's tensors to the next by hand."""
        tensors: IntermediateTensors | None = None
        for worker in self.workers:
            request = ExecuteModel(
                scheduler_output=output,
                intermediate_tensors=tensors,
                inline_reply=worker is not self.last,
            )
            result = await worker.execute_model(request)
            tensors = result if isinstance(result, IntermediateTensors) else None
        return await self.last.sample_tokens(output.step_id)

    def _plan(self, **columns: object) -> SchedulerOutput:
        self.step += 1
        return SchedulerOutput(
            step_id=step_id(self.step),
            base_step=self.step - 1,
            **columns,  # pyright: ignore[reportArgumentType] - columns of the one dataclass
        )


async def _token(run: RunStep, output: SchedulerOutput) -> int:
    result = await run(output)
    return int(result.sampled_token_ids.row(0)[0])


def _blocks(num_before: int, num_known: int) -> list[int]:
    """Ids of the blocks that num_known tokens need over num_before; the first one is block 1."""
    return list(range(1 - (-num_before // BLOCK_SIZE), 1 - (-num_known // BLOCK_SIZE)))
