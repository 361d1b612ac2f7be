"""A model whose next token is a hash of all tokens before it, read through the block table.

It keeps what a real worker keeps (known tokens, block tables, computed counts) and a paged store
with one token per slot in place of keys and values, so a scheduler that hands out a wrong block,
count or token either fails validation or changes the tokens that come out. Block tables with a sliding
window have to hold what the window sees, whenever a row is computed. It proposes drafts where a
step wants some: fewer than that, and some of them wrong.
"""

import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from common.errors import InvalidStep
from common.requests import SamplingParams
from common.state_digest import state_digest
from common.step import (
    Int32s,
    Logprobs,
    ModelRunnerOutput,
    NewRequest,
    Phase,
    Ragged,
    SchedulerOutput,
    StepId,
    StepKey,
)

EMPTY_SLOT = -1


def next_token(token_ids: Sequence[int] | Int32s, *, vocab_size: int = 256) -> int:
    """Token that follows token_ids."""
    return zlib.crc32(np.asarray(token_ids, dtype="<i4").tobytes()) % vocab_size


def scripted_tokens(
    prompt: Sequence[int], num_tokens: int, *, vocab_size: int = 256
) -> tuple[int, ...]:
    """The num_tokens tokens that follow a prompt when nothing ends the output earlier."""
    token_ids = list(prompt)
    for _ in range(num_tokens):
        token_ids.append(next_token(token_ids, vocab_size=vocab_size))
    return tuple(token_ids[len(prompt) :])


def scripted_drafts(
    token_ids: Sequence[int], most: int, *, vocab_size: int = 256
) -> tuple[int, ...]:
    """At most so many guesses of what follows; how many and which are wrong is a hash of the tokens."""
    known = list(token_ids)
    chance = zlib.crc32(np.asarray(known, dtype="<i4").tobytes(), 7)
    for index in range(chance % (most + 1)):
        is_wrong = (chance >> (4 + 2 * index)) % 4 == 0
        known.append((next_token(known, vocab_size=vocab_size) + is_wrong) % vocab_size)
    return tuple(known[len(token_ids) :])


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLimits:
    """The sizes that LoadModel and InitializeKVCache fix: tokens, sequences, blocks, windows of block tables."""

    vocab_size: int = 256
    block_size: int = 4
    num_blocks: int = 64
    max_model_len: int = 512
    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 64
    table_windows: tuple[int, ...] = (0,)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownRequest:
    """One request as a worker holds it.

    draft_ids: guesses that its last step computed behind its tokens, of num_room that were planned;
    num_planned_tokens: tokens computed after its last step, if all drafts in flight were right.
    """

    handle: int
    token_ids: tuple[int, ...]
    tables: tuple[tuple[int, ...], ...]
    num_computed_tokens: int
    num_planned_tokens: int
    sampling: SamplingParams
    draft_ids: tuple[int, ...] = ()
    num_room: int = 0

    @property
    def block_ids(self) -> tuple[int, ...]:
        """The first block table."""
        return self.tables[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledRow:
    """A row of a step that sampled: its request after the step, what follows, and guesses behind it."""

    request: KnownRequest
    token_ids: tuple[int, ...]
    drafts: tuple[int, ...] = ()


class ScriptedModel:
    """Request states and paged token store of one rank."""

    def __init__(self, limits: ModelLimits) -> None:
        self._limits = limits
        self._slots = np.full(limits.num_blocks * limits.block_size, EMPTY_SLOT, dtype=np.int32)
        self._requests: dict[int, KnownRequest] = {}
        self._last_samples: dict[int, tuple[int, SampledRow]] = {}

    @property
    def known_handles(self) -> frozenset[int]:
        """Handles of the requests held."""
        return frozenset(self._requests)

    def forget_requests(self) -> None:
        """Drop all request state; the paged store keeps its contents."""
        self._requests = {}
        self._last_samples = {}

    def state_digest(self) -> bytes:
        """Digest of the requests held."""
        return state_digest(
            (request.handle, request.tables, request.num_planned_tokens)
            for request in self._requests.values()
        )

    def apply(self, output: SchedulerOutput) -> list[SampledRow]:
        """Run one step; raises InvalidStep, with nothing changed, when it contradicts the state."""
        held = self._without_dropped(output)
        rows = self._rows(output, held)
        counts = output.num_scheduled_tokens.tolist()
        self._check_step(rows, counts, held)
        sources = [0] * len(
            output.new_requests
        ) + output.cached_requests.token_source_steps.tolist()
        for request, count, source in zip(rows, counts, sources, strict=True):
            num_drafts = len(request.draft_ids)
            num_tokens = (1 if source else count - num_drafts) + num_drafts
            self._store(request, num_tokens)
            held[request.handle] = replace(
                request,
                num_computed_tokens=request.num_computed_tokens + num_tokens - num_drafts,
                num_planned_tokens=request.num_planned_tokens + count,
                num_room=count - (num_tokens - num_drafts),
            )
        self._requests = held
        wanted = output.num_drafts_wanted.tolist() or [0] * len(rows)
        sampled = [
            self._sample(held[row.handle], most_drafts=most_drafts)
            for row, most_drafts in zip(rows, wanted, strict=True)
            if held[row.handle].num_computed_tokens == len(row.token_ids)
        ]
        for row in sampled:
            self._last_samples[row.request.handle] = (output.step_id.step, row)
        return sampled

    def _without_dropped(self, output: SchedulerOutput) -> dict[int, KnownRequest]:
        held = dict(self._requests)
        dropped = [*output.finished_handles.tolist(), *output.preempted_handles.tolist()]
        for handle in dropped:
            if held.pop(handle, None) is None:
                raise InvalidStep(f"handle {handle} is dropped but not known, or dropped twice")
        return held

    def _rows(self, output: SchedulerOutput, held: dict[int, KnownRequest]) -> list[KnownRequest]:
        rows = [_admitted(request) for request in output.new_requests]
        for row in rows:
            if row.handle in held:
                raise InvalidStep(f"handle {row.handle} is new but already known")
        cached = output.cached_requests
        for index, handle in enumerate(cached.handles.tolist()):
            known = held.get(handle)
            if known is None:
                raise InvalidStep(f"handle {handle} is cached but not known")
            new_token_ids = cached.new_token_ids.row(index).tolist()
            drafts: list[int] = []
            if cached.draft_token_ids is not None:
                drafts = cached.draft_token_ids.row(index).tolist()
            claimed = int(cached.num_computed_tokens[index])
            num_planned = known.num_computed_tokens + known.num_room
            if source_step := int(cached.token_source_steps[index]):
                fed = self._fed_row(handle, source_step, new_token_ids + drafts)
                new_token_ids = list(fed.token_ids)
                planned = output.num_scheduled_tokens[len(output.new_requests) + index]
                drafts = list(fed.drafts[: planned - 1])
            num_accepted = max(0, min(len(new_token_ids) - 1, len(known.draft_ids)))
            num_computed = known.num_computed_tokens + num_accepted
            if claimed != (num_planned if source_step else num_computed):
                raise InvalidStep(f"handle {handle}: the computed counts differ")
            rows.append(
                replace(
                    known,
                    token_ids=(*known.token_ids, *new_token_ids),
                    tables=tuple(
                        (*table, *new_block_ids.row(index).tolist())
                        for table, new_block_ids in zip(
                            known.tables, cached.new_block_ids, strict=True
                        )
                    ),
                    draft_ids=tuple(drafts),
                    num_computed_tokens=num_computed,
                    num_planned_tokens=claimed,
                )
            )
        return rows

    def _fed_row(self, handle: int, source_step: int, given: list[int]) -> SampledRow:
        step, row = self._last_samples.get(handle, (0, None))
        if given or step != source_step or row is None:
            raise InvalidStep(f"handle {handle}: step {source_step} is not where it sampled last")
        return row

    def _check_step(
        self, rows: list[KnownRequest], counts: list[int], held: dict[int, KnownRequest]
    ) -> None:
        limits = self._limits
        if len(rows) != len(counts) or len(rows) != len({row.handle for row in rows}):
            raise InvalidStep("rows and counts differ in number, or a handle has two rows")
        if sum(counts) > limits.max_num_batched_tokens or len(rows) > limits.max_num_seqs:
            raise InvalidStep(f"{len(rows)} rows with {sum(counts)} tokens are over the budget")
        for row, count in zip(rows, counts, strict=True):
            self._check_row(row, count)
        after = {**held, **{row.handle: row for row in rows}}
        self._check_writers(rows, counts, after)

    def _check_row(self, row: KnownRequest, count: int) -> None:
        limits = self._limits
        end = row.num_planned_tokens + count
        is_known = end <= len(row.token_ids) or row.num_computed_tokens == len(row.token_ids) - 1
        if count < 1 or not is_known or end > limits.max_model_len:
            raise InvalidStep(
                f"handle {row.handle}: {count} tokens after {row.num_computed_tokens} computed "
                f"of {len(row.token_ids)} known"
            )
        if len(row.tables) != len(limits.table_windows):
            raise InvalidStep(f"handle {row.handle}: it has {len(row.tables)} block tables")
        for table in row.tables:
            if end > len(table) * limits.block_size:
                raise InvalidStep(f"handle {row.handle}: its blocks do not cover {end} tokens")
            if any(not 0 <= block < limits.num_blocks for block in table):
                raise InvalidStep(f"handle {row.handle}: a block id is out of range")
        if any(not 0 <= token < limits.vocab_size for token in row.token_ids):
            raise InvalidStep(f"handle {row.handle}: a token id is out of range")

    def _check_writers(
        self, rows: list[KnownRequest], counts: list[int], after: dict[int, KnownRequest]
    ) -> None:
        """Blocks may be shared to be read; one that a row writes is in its table alone, and once."""
        block_size = self._limits.block_size
        # Of a table with a window only what the next token sees is sure to be the request's own, and
        # the next one may come behind the drafts of the step before.
        num_places = Counter(
            block
            for request in after.values()
            for table, window in zip(request.tables, self._limits.table_windows, strict=True)
            for block in table[self._first_seen(request, window, are_right=True) // block_size :]
        )
        for row, count in zip(rows, counts, strict=True):
            first = row.num_computed_tokens // block_size
            last = (row.num_computed_tokens + count - 1) // block_size
            for table in row.tables:
                for block in table[first : last + 1]:
                    if block and num_places[block] > 1:
                        raise InvalidStep(
                            f"block {block} is written by handle {row.handle} but shared"
                        )

    def _first_seen(self, request: KnownRequest, window: int, *, are_right: bool = False) -> int:
        """The first token that the request's next one sees, if all its drafts are right or none."""
        num_computed = request.num_computed_tokens + are_right * len(request.draft_ids)
        return max(0, num_computed - window + 1) if window else 0

    def _slots_of(self, table: Sequence[int], start: int, end: int) -> Int32s:
        positions = np.arange(start, end)
        blocks = np.asarray(table, dtype=np.int32)
        block_size = self._limits.block_size
        return blocks[positions // block_size] * block_size + positions % block_size

    def _store(self, request: KnownRequest, count: int) -> None:
        start = request.num_computed_tokens
        token_ids = np.array(request.token_ids + request.draft_ids, dtype=np.int32)
        for table, window in zip(request.tables, self._limits.table_windows, strict=True):
            seen = range(self._first_seen(request, window), start)
            stored = self._slots[self._slots_of(table, seen.start, seen.stop)]
            if window and (stored != token_ids[seen.start : seen.stop]).any():
                raise InvalidStep(
                    f"handle {request.handle}: a window of {window} lacks tokens at {start}"
                )
            slots = self._slots_of(table, start, start + count)
            self._slots[slots] = token_ids[start : start + count]

    def _sample(self, request: KnownRequest, *, most_drafts: int) -> SampledRow:
        vocab_size = self._limits.vocab_size
        num_computed, drafts = request.num_computed_tokens, request.draft_ids
        if self._limits.table_windows[0]:
            context = np.array(request.token_ids + drafts, dtype=np.int32)  # no table has all of it
        else:
            end = num_computed + len(drafts)
            context = self._slots[self._slots_of(request.tables[0], 0, end)]
        token_ids = [next_token(context[:num_computed], vocab_size=vocab_size)]
        while len(token_ids) <= len(drafts) and token_ids[-1] == drafts[len(token_ids) - 1]:
            end = num_computed + len(token_ids)
            token_ids.append(next_token(context[:end], vocab_size=vocab_size))
        known = (*request.token_ids, *token_ids)
        return SampledRow(
            request=request,
            token_ids=tuple(token_ids),
            drafts=scripted_drafts(known, most_drafts, vocab_size=vocab_size),
        )


def _admitted(request: NewRequest) -> KnownRequest:
    return KnownRequest(
        handle=request.handle,
        token_ids=tuple(request.token_ids.tolist()),
        tables=tuple(tuple(block_ids.tolist()) for block_ids in request.block_ids),
        num_computed_tokens=request.num_computed_tokens,
        num_planned_tokens=request.num_computed_tokens,
        sampling=request.sampling,
    )


def runner_output(
    step_id: StepId,
    rows: list[SampledRow],
    *,
    vocab_size: int = 256,
    poison_token_id: int | None = None,
) -> ModelRunnerOutput:
    """What the last stage answers; requests that hold poison_token_id fail instead of sampling."""
    poisoned = [row for row in rows if poison_token_id in row.request.token_ids]
    healthy = [row for row in rows if row not in poisoned]
    return ModelRunnerOutput(
        key=StepKey(step_id=step_id, phase=Phase.SAMPLE),
        handles=np.array([row.request.handle for row in healthy], dtype=np.uint64),
        sampled_token_ids=Ragged.from_rows([row.token_ids for row in healthy]),
        drafts=Ragged.from_rows([row.drafts for row in healthy]),
        logprobs=_scripted_logprobs(healthy, vocab_size=vocab_size),
        request_errors=tuple((row.request.handle, "poisoned prompt") for row in poisoned),
    )


def _scripted_logprobs(rows: list[SampledRow], *, vocab_size: int) -> Logprobs | None:
    """The chosen token has rank 1; the best alternatives are the chosen id and its successors."""
    wanted = [row.request.sampling.num_logprobs for row in rows]
    if all(count is None for count in wanted):
        return None
    offsets = np.arange(1 + max(count or 0 for count in wanted), dtype=np.int32)
    offsets[1:] -= 1  # the best alternative is the chosen token itself
    chosen = np.array([token for row in rows for token in row.token_ids], dtype=np.int32)
    token_ids = (chosen[:, None] + offsets[None, :]) % vocab_size
    return Logprobs(
        token_ids=token_ids.astype(np.int32),
        logprobs=np.broadcast_to(-(offsets + 1).astype(np.float32), token_ids.shape).copy(),
        ranks=np.ones(len(chosen), dtype=np.int32),
    )
