"""One sequence: its tokens, blocks, counts and state. Knows nothing of steps or other sequences."""

from array import array
from enum import Enum, auto

from common.requests import FinishReason, Request, TokenLogprobs
from common.step import PromptLogprobs
from common.transitions import Transitions
from coordinator.kv.allocator import SequenceBlocks
from coordinator.scheduling.deltas import token_logprobs

TOKEN_TYPECODE = "i"


class SequenceState(Enum):
    """Where a sequence stands; a preempted one is WAITING again."""

    WAITING = auto()
    RUNNING = auto()
    FINISHED = auto()


class SequenceEvent(Enum):
    """What happens to a sequence."""

    ADMIT = auto()
    PREEMPT = auto()
    FINISH = auto()


TRANSITIONS = Transitions(
    {
        (SequenceState.WAITING, SequenceEvent.ADMIT): SequenceState.RUNNING,
        (SequenceState.RUNNING, SequenceEvent.PREEMPT): SequenceState.WAITING,
        (SequenceState.RUNNING, SequenceEvent.FINISH): SequenceState.FINISHED,
        # Aborted before admission, or preempted while a step in flight held its last token.
        (SequenceState.WAITING, SequenceEvent.FINISH): SequenceState.FINISHED,
    }
)


class Sequence:
    """The tokens of one request and how far they are computed.

    token_ids: prompt, then committed output. num_placeholders: tokens behind them that steps in flight
    sample. num_computed_tokens counts tokens whose keys and values stand in its blocks once the steps
    in flight are done. num_cached_tokens: prompt tokens that were found computed at its first
    admission. max_len: most tokens, prompt included.
    rank: the smaller, the sooner it runs and the later it gives way; no two are equal. last_step: number
    of the step that computed it last. num_sent_tokens, num_sent_blocks: how much of it the workers
    were told or sampled themselves, kept by the planner. end_token_ids: tokens that end the output.
    leader: a sequence with the same prompt, whose blocks of it this one takes over; None: it has none.
    """

    __slots__ = (
        "blocks",
        "cohort",
        "end_token_ids",
        "handle",
        "last_step",
        "leader",
        "max_len",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_placeholders",
        "num_prompt_tokens",
        "num_sent_blocks",
        "num_sent_tokens",
        "prompt_logprobs",
        "rank",
        "request",
        "state",
        "token_ids",
        "was_admitted",
    )

    def __init__(
        self,
        handle: int,
        request: Request,
        *,
        max_sequence_len: int,
        eos_token_ids: frozenset[int] = frozenset(),
        has_priorities: bool = False,
        leader: "Sequence | None" = None,
    ) -> None:
        self.handle = handle
        self.leader = leader
        self.request = request
        self.rank = (request.priority if has_priorities else 0, handle)
        self.token_ids = array(TOKEN_TYPECODE, request.prompt_token_ids)
        self.num_prompt_tokens = len(request.prompt_token_ids)
        self.max_len = min(max_sequence_len, self.num_prompt_tokens + request.stopping.max_tokens)
        self.end_token_ids = request.stopping.stop_token_ids
        if not request.stopping.ignore_eos:
            self.end_token_ids |= eos_token_ids
        self.num_computed_tokens = 0
        self.num_placeholders = 0
        self.num_sent_tokens = 0
        self.num_sent_blocks = 0
        self.was_admitted = False
        self.num_cached_tokens = 0
        self.blocks = SequenceBlocks()
        self.cohort = 0
        self.last_step = 0
        self.state = SequenceState.WAITING
        self.prompt_logprobs: list[TokenLogprobs] | None = None
        if request.sampling.num_prompt_logprobs is not None:
            self.prompt_logprobs = []

    @property
    def num_tokens(self) -> int:
        """Known tokens."""
        return len(self.token_ids)

    @property
    def waits_for_leader(self) -> bool:
        """Whether what the leader knows of the prompt is still to come, in a step before this one's first."""
        leader = self.leader
        if leader is None or leader.state is SequenceState.FINISHED:
            return False
        return leader.num_computed_tokens < self.num_prompt_tokens or not leader.reads_prefixes

    @property
    def reads_prefixes(self) -> bool:
        """Whether blocks that others have filled may be taken over: not while each state is needed."""
        known = self.prompt_logprobs
        return known is None or len(known) >= self.num_prompt_tokens - 1

    def learn_from_leader(self) -> None:
        """Take over the log-probabilities of the prompt, if they are complete."""
        leader = self.leader
        if leader is not None and self.prompt_logprobs is not None and leader.reads_prefixes:
            self.prompt_logprobs = leader.prompt_logprobs

    def add_prompt_logprobs(self, part: PromptLogprobs) -> None:
        """Take a chunk's; what is known from before a preemption is computed again and left out."""
        known, count = self.prompt_logprobs, self.request.sampling.num_prompt_logprobs
        if known is None or count is None:
            return
        first_row = len(known) + 1 - part.first_position
        for row in range(first_row, len(part.logprobs.ranks)):
            known.append(token_logprobs(part.logprobs, row, count))

    def take_prompt_logprobs(self) -> tuple[TokenLogprobs, ...] | None:
        """All of them, for the delta of the first output token; None with every later one."""
        if self.prompt_logprobs is None or self.num_tokens != self.num_prompt_tokens + 1:
            return None
        return tuple(self.prompt_logprobs)

    def move(self, event: SequenceEvent) -> None:
        """Change state; raises WrongState when the event cannot happen in this one."""
        self.state = TRANSITIONS.next(self.state, event)

    def append(self, token_id: int) -> FinishReason | None:
        """Commit the oldest token in flight and say whether it ends the output: end token, then length."""
        self.num_placeholders -= 1
        self.token_ids.append(token_id)
        if token_id in self.end_token_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if len(self.token_ids) >= self.max_len else None
