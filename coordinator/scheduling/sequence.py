"""One sequence: its tokens, blocks, counts and state. Knows nothing of steps or other sequences."""

from array import array
from collections.abc import Sequence as Sequence_
from enum import Enum, auto
from typing import Protocol

from common.requests import FinishReason, Request, TokenLogprobs
from common.step import Int32s, PromptLogprobs
from common.transitions import Transitions
from coordinator.kv.allocator import SequenceBlocks
from coordinator.scheduling.deltas import token_logprobs
from coordinator.speculation.draft_policy import DraftLimit

TOKEN_TYPECODE = "i"

NO_DRAFTS: list[int] = []


class TokenMatcher(Protocol):
    """The grammar of one output."""

    @property
    def is_over(self) -> bool:
        """Whether nothing but an end may follow."""
        ...

    def advance(self, token_id: int) -> bool:
        """Take the next token of the output; False when the grammar does not allow it."""
        ...

    def masks_along(self, drafts: "Sequence_[int]" = ()) -> Int32s:
        """What may follow the output and each of its drafts that the grammar allows; int32 [1 + n, words]."""
        ...


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
    sample, if all their drafts are right. num_computed_tokens counts tokens whose keys and values stand
    in its blocks once the steps in flight are done, if all are; num_planned_tokens what it was after
    the last step was planned. drafts: guesses that follow the committed output; num_wanted: most that
    the last step proposes; draft_limit: most it may have. num_cached_tokens: prompt tokens that were found computed at its first
    admission. max_len: most tokens, prompt included.
    rank: the smaller, the sooner it runs and the later it gives way; no two are equal. last_step: number
    of the step that computed it last, source_step: of the one whose tokens that step was fed, or 0. num_sent_tokens, num_sent_blocks: how much of it the workers
    were told or sampled themselves, kept by the planner, as num_sent_more: blocks of its further tables. end_token_ids: tokens that end the output.
    matcher: what its grammar allows next; None: anything.
    leader: a sequence with the same prompt, whose blocks of it this one takes over; None: it has none.
    """

    __slots__ = (
        "blocks",
        "cohort",
        "draft_limit",
        "drafts",
        "end_token_ids",
        "handle",
        "last_step",
        "leader",
        "matcher",
        "max_len",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_placeholders",
        "num_planned_tokens",
        "num_prompt_tokens",
        "num_sent_blocks",
        "num_sent_more",
        "num_sent_tokens",
        "num_wanted",
        "prompt_logprobs",
        "rank",
        "request",
        "source_step",
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
        most_drafts: int = 0,
        leader: "Sequence | None" = None,
        matcher: TokenMatcher | None = None,
    ) -> None:
        self.handle = handle
        self.matcher = matcher
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
        self.num_planned_tokens = 0
        self.drafts = NO_DRAFTS
        self.num_wanted = 0
        self.draft_limit = DraftLimit(most_drafts)
        self.num_sent_tokens = 0
        self.num_sent_blocks = 0
        self.num_sent_more: list[int] = []
        self.was_admitted = False
        self.num_cached_tokens = 0
        self.blocks = SequenceBlocks()
        self.cohort = 0
        self.last_step = 0
        self.source_step = 0
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

    def begin(self, num_computed: int) -> bool:
        """Start with so many computed tokens and no drafts; say whether it is the first admission."""
        is_first = not self.was_admitted
        if is_first:
            self.was_admitted = True
            self.num_cached_tokens = num_computed
        self.num_computed_tokens = num_computed
        self.drafts = NO_DRAFTS
        self.leader = None
        return is_first

    def commit(
        self, token_ids: list[int], *, num_planned: int = 0
    ) -> tuple[int, FinishReason | None]:
        """Commit what the oldest step in flight emitted, at least one token, of num_planned drafts.

        The matcher has taken these tokens, and no more come once it is over.
        Says how many tokens the output takes, and whether the last of them ends it: end token, then
        length. Drafts that were rejected, or never there, leave the counts.
        """
        self.num_placeholders -= 1 + num_planned
        if num_planned and self.state is SequenceState.RUNNING:
            self.num_computed_tokens -= 1 + num_planned - len(token_ids)
        for count, token_id in enumerate(token_ids, start=1):
            self.token_ids.append(token_id)
            if token_id in self.end_token_ids:
                return count, FinishReason.STOP
            if self.matcher is not None and count == len(token_ids) and self.matcher.is_over:
                return count, FinishReason.STOP
            if len(self.token_ids) >= self.max_len:
                return count, FinishReason.LENGTH
        return len(token_ids), None

    def append(self, token_id: int) -> FinishReason | None:
        """Commit the one token of the oldest step in flight, which has no drafts and no grammar; as `commit`."""
        # Runs for every row of a plain step, so it is not left to `commit`.
        self.num_placeholders -= 1
        self.token_ids.append(token_id)
        if token_id in self.end_token_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if len(self.token_ids) >= self.max_len else None
