"""A scheduler and a scripted model joined without a loop: the test says when a step is answered.

Checks on every step what must hold for all of them: budgets, no more steps in flight than allowed,
every finished or preempted request told to the workers once, and equal books where the step asks for
them.
"""

from collections import defaultdict, deque

from common.config import ScheduleConfig
from common.requests import FinishReason, Request, SamplingParams, StopParams, TokenDelta
from common.step import ModelRunnerOutput, SchedulerOutput
from coordinator.scheduling.scheduler import Scheduler
from tests.fakes.scripted_model import ModelLimits, ScriptedModel, runner_output


def request(
    prompt: tuple[int, ...],
    *,
    max_tokens: int,
    request_id: str = "a",
    ignore_eos: bool = False,
    stop_token_ids: frozenset[int] = frozenset(),
    num_logprobs: int | None = None,
    priority: int = 0,
) -> Request:
    """A greedy request."""
    return Request(
        request_id=request_id,
        prompt_token_ids=prompt,
        sampling=SamplingParams(temperature=0.0, num_logprobs=num_logprobs),
        stopping=StopParams(
            max_tokens=max_tokens, ignore_eos=ignore_eos, stop_token_ids=stop_token_ids
        ),
        priority=priority,
    )


def handles_of(output: SchedulerOutput) -> list[int]:
    """Handles of a step's rows in row order."""
    return [new.handle for new in output.new_requests] + output.cached_requests.handles.tolist()


class ScriptedReplica:
    """Runs steps as they are planned; their results wait until `commit`."""

    def __init__(
        self,
        config: ScheduleConfig,
        *,
        num_stages: int = 1,
        num_blocks: int = 64,
        block_size: int = 4,
        max_model_len: int = 512,
        eos_token_ids: frozenset[int] = frozenset(),
        vocab_size: int = 256,
        poison_token_id: int | None = None,
        has_prefix_cache: bool = True,
        most_drafts: int = 0,
        table_windows: tuple[int, ...] = (0,),
    ) -> None:
        self.scheduler = Scheduler(
            config,
            num_stages=num_stages,
            num_blocks=num_blocks,
            block_size=block_size,
            max_model_len=max_model_len,
            eos_token_ids=eos_token_ids,
            has_prefix_cache=has_prefix_cache,
            most_drafts=most_drafts,
            table_windows=table_windows,
        )
        self.scheduler.begin_generation(epoch=1, generation=1)
        self._config = config
        self._num_stages = num_stages
        self._vocab_size = vocab_size
        self._poison_token_id = poison_token_id
        self._model = ScriptedModel(
            ModelLimits(
                vocab_size=vocab_size,
                block_size=block_size,
                num_blocks=num_blocks,
                max_model_len=max_model_len,
                max_num_batched_tokens=config.step_tokens,
                max_num_seqs=config.sequence_limit,
                table_windows=table_windows,
            )
        )
        self._in_flight: deque[tuple[SchedulerOutput, ModelRunnerOutput]] = deque()
        self._last_step = 0
        self.token_ids: dict[int, list[int]] = defaultdict(list)
        self.finish_reasons: dict[int, FinishReason] = {}
        self.finished_handles: list[int] = []
        self.num_preempted_handles = 0
        self.num_computed_tokens = 0

    @property
    def known_handles(self) -> frozenset[int]:
        """Handles of the requests that the workers hold."""
        return self._model.known_handles

    @property
    def has_steps_in_flight(self) -> bool:
        """Whether a step waits for its commit."""
        return bool(self._in_flight)

    @property
    def handles_in_flight(self) -> list[int]:
        """Handles of all rows in flight, oldest step first."""
        return [handle for output, _ in self._in_flight for handle in handles_of(output)]

    def plan(self) -> SchedulerOutput | None:
        """Plan a step and send it, if the scheduler has one."""
        output = self.scheduler.schedule()
        if output is not None:
            assert output.num_rows > 0
            self.send(output)
        return output

    def plan_all(self) -> list[SchedulerOutput]:
        """Plan until the scheduler has no step."""
        outputs: list[SchedulerOutput] = []
        while (output := self.plan()) is not None:
            outputs.append(output)
        return outputs

    def send(self, output: SchedulerOutput) -> None:
        """Run a step; its result waits for its commit."""
        handles = handles_of(output)
        assert output.base_step == self._last_step
        assert output.step_id.step == self._last_step + 1
        assert len(self._in_flight) < self._config.steps_in_flight(self._num_stages)
        if not self._config.async_scheduling:
            assert not set(handles) & set(self.handles_in_flight), "a request is in flight twice"
        assert output.total_num_scheduled_tokens <= self._config.step_tokens
        self._last_step += 1
        rows = self._model.apply(output)  # a handle dropped twice fails here
        if output.want_state_digest:
            assert self._model.state_digest() == self.scheduler.state_digest(), "the books differ"
        self.num_computed_tokens += output.total_num_scheduled_tokens
        self.finished_handles += output.finished_handles.tolist()
        self.num_preempted_handles += len(output.preempted_handles)
        result = runner_output(
            output.step_id,
            rows,
            vocab_size=self._vocab_size,
            poison_token_id=self._poison_token_id,
        )
        self._in_flight.append((output, result))

    def commit(self) -> list[tuple[int, TokenDelta]]:
        """Answer the oldest step in flight."""
        output, result = self._in_flight.popleft()
        deltas = self.scheduler.update_from_output(output, result)
        for handle, delta in deltas:
            assert handle not in self.finish_reasons, "tokens after the end"
            self.token_ids[handle] += delta.token_ids
            if delta.finish_reason is not None:
                self.finish_reasons[handle] = delta.finish_reason
        return deltas

    def run_until_idle(self, *, most_steps: int = 10_000) -> None:
        """Keep the pipeline full until nothing is left, then tell the workers what has ended."""
        for _ in range(most_steps):
            self.plan_all()
            if not self._in_flight:
                break
            self.commit()
        else:
            raise AssertionError(f"not idle after {most_steps} steps")
        if self.scheduler.has_undelivered_finishes:
            self.send(self.scheduler.plan_step_without_tokens())
            self.commit()
