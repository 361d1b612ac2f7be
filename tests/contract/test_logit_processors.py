"""Every logits processor against a reference in numpy that treats one row at a time.

Legend: S rows of logits, V vocabulary.
"""

import json
import random
from importlib.metadata import EntryPoint
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from common.errors import ModelError
from common.requests import SamplingParams
from common.step import NewRequest
from worker_service.batch.request_states import RequestStates
from worker_service.sampling.custom_processors import CustomProcessors, load_custom_processors
from worker_service.sampling.logit_editor import NO_NUMBERS, NOTHING_ALLOWED, LogitEditor
from worker_service.sampling.sampler import sample
from worker_service.sampling.sampling_states import SamplingRows, SamplingStates

VOCABULARY = 40


class Batch:
    """Requests with tokens, as the runner holds them, and the rows that draw each one's next token."""

    def __init__(self, requests: list[tuple[list[int], list[int], SamplingParams]]) -> None:
        """Each is a prompt, an output and what is asked."""
        self.states = RequestStates(num_slots=2, max_model_len=64, block_size=4)
        self.sampling = SamplingStates(num_slots=2)
        slots, positions = [], []
        for index, (prompt, output, params) in enumerate(requests):
            request = NewRequest(
                handle=index + 1,
                token_ids=np.array(prompt + output, dtype=np.int32),
                num_prompt_tokens=len(prompt),
                sampling=params,
                block_ids=(np.arange(16, dtype=np.int32),),
                num_computed_tokens=0,
            )
            slots.append(self.states.add(request))
            self.sampling.replace(slots[-1], params)
            positions.append(len(prompt) + len(output))
        self.slots = np.array(slots, dtype=np.int64)
        self.positions = np.array(positions, dtype=np.int64)

    @property
    def rows(self) -> SamplingRows:
        """One row a request."""
        return self.sampling.rows(self.slots, positions=self.positions)


def edited(
    logits_V: NDArray[np.float32], prompt: list[int], output: list[int], params: SamplingParams
) -> NDArray[np.float32]:
    """The reference: the edits of one row in their order, written out."""
    logits = logits_V.astype(np.float64).copy()
    if params.allowed_token_ids:
        for token in set(range(len(logits))) - set(params.allowed_token_ids):
            logits[token] = -np.inf
    for *beginning, last in params.bad_words:
        if output[len(output) - len(beginning) :] == beginning and len(output) >= len(beginning):
            logits[last] = -np.inf
    if len(output) < params.min_tokens:
        logits[list(params.end_token_ids)] = -np.inf
    for token, bias in params.logit_bias:
        logits[token] += bias
    for token in set(prompt + output):
        by = params.repetition_penalty
        logits[token] = logits[token] / by if logits[token] > 0 else logits[token] * by
    for token in set(output):
        logits[token] -= params.frequency_penalty * output.count(token) + params.presence_penalty
    return logits.astype(np.float32)


def random_params(draw: random.Random) -> SamplingParams:
    """Some edits of each kind, or none."""

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(draw.sample(range(VOCABULARY), count))

    return SamplingParams(
        temperature=0.0,
        repetition_penalty=draw.choice([1.0, 1.3, 0.7]),
        frequency_penalty=draw.choice([0.0, 0.5, -0.4]),
        presence_penalty=draw.choice([0.0, 0.6]),
        min_tokens=draw.choice([0, 3, 8]),
        end_token_ids=tokens(2),
        logit_bias=tuple((token, draw.uniform(-9, 9)) for token in tokens(draw.randint(0, 4))),
        allowed_token_ids=tokens(draw.choice([0, 0, 25])),
        bad_words=tuple(tokens(draw.choice([1, 1, 2])) for _ in range(draw.randint(0, 9))),
    )


def random_request(draw: random.Random) -> tuple[list[int], list[int], SamplingParams]:
    """A prompt and an output of few different tokens, so that they repeat."""
    prompt = [draw.randrange(12) for _ in range(draw.randint(1, 20))]
    output = [draw.randrange(15) for _ in range(draw.randint(0, 12))]
    return prompt, output, random_params(draw)


@pytest.mark.parametrize("seed", range(20))
def test_edits_equal_the_reference(seed: int) -> None:
    """Every combination of edits, in rows beside each other and beside rows without any."""
    draw = random.Random(seed)
    requests = [random_request(draw) for _ in range(6)]
    requests[2] = (*requests[2][:2], SamplingParams(temperature=0.0))
    batch = Batch(requests)
    logits_SV = torch.randn(6, VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 3
    before = logits_SV.clone().numpy()
    editor = LogitEditor(batch.states)
    assert editor.apply(logits_SV, editor.edited_rows(batch.rows)) == {}
    for row, request in enumerate(requests):
        expected = edited(before[row], *request)
        np.testing.assert_allclose(logits_SV[row].numpy(), expected, rtol=1e-6, atol=1e-6)


def test_batch_without_edits_has_no_rows() -> None:
    """Rows that ask for nothing are not looked at."""
    batch = Batch([([1, 2], [3], SamplingParams(top_k=3, min_p=0.1, num_logprobs=2))])
    assert LogitEditor(batch.states).edited_rows(batch.rows) == []


def test_history_ends_before_the_drawn_token() -> None:
    """A row in the middle of its tokens, as a draft has one, has seen what stands before it alone."""
    batch = Batch([([1, 2], [3, 4, 5], SamplingParams(frequency_penalty=1.0))])
    rows = batch.sampling.rows(batch.slots, positions=np.array([4]))
    (row,) = LogitEditor(batch.states).edited_rows(rows)
    assert (row.prompt_ids.tolist(), row.output_ids.tolist()) == ([1, 2], [3, 4])


def test_log_probabilities_are_of_the_logits_before_edits() -> None:
    """A bias changes which token is drawn, not what the model said of it."""
    params = SamplingParams(temperature=0.0, num_logprobs=1, logit_bias=((3, 100.0),))
    batch = Batch([([1], [], params)])
    logits_SV = torch.zeros(1, VOCABULARY)
    logits_SV[0, 7] = 5.0
    said = logits_SV.log_softmax(dim=1)[0]
    sampled = sample(logits_SV, batch.rows, LogitEditor(batch.states))
    assert sampled.token_ids.tolist() == [3]
    assert sampled.logprobs is not None
    assert sampled.logprobs.token_ids.tolist() == [[3, 7]]
    np.testing.assert_allclose(sampled.logprobs.logprobs, [[said[3], said[7]]], rtol=1e-6)


def test_row_without_a_possible_token_fails_alone() -> None:
    """What is allowed and what is forbidden may leave nothing: that request fails, its neighbours draw."""
    nothing = SamplingParams(temperature=1.0, allowed_token_ids=(5,), bad_words=((5,),))
    batch = Batch([([1], [], SamplingParams(temperature=0.0)), ([1], [], nothing)])
    logits_SV = torch.zeros(2, VOCABULARY)
    logits_SV[:, 9] = 1.0
    sampled = sample(logits_SV, batch.rows, LogitEditor(batch.states))
    assert sampled.token_ids.tolist() == [9]
    assert sampled.is_sampled.tolist() == [True, False]
    assert sampled.errors == {1: NOTHING_ALLOWED}


class Forbid:
    """A custom processor: its argument is a token that is not drawn."""

    def apply(self, logits_V: torch.Tensor, *, argument: Any, **tokens: Any) -> torch.Tensor:
        """Forbid it."""
        del tokens
        logits_V[argument] = -np.inf
        return logits_V


def custom_request(argument: Any) -> tuple[list[int], list[int], SamplingParams]:
    """A greedy request with an argument for the processor."""
    extra_args = (("forbid", json.dumps(argument)),)
    return [1], [], SamplingParams(temperature=0.0, extra_args=extra_args)


def test_custom_processor_edits_and_fails_the_rows_that_name_it() -> None:
    """An argument reaches the processor; what it raises is the error of its request alone."""
    batch = Batch([custom_request(9), custom_request("nine"), ([1], [], SamplingParams())])
    logits_SV = torch.zeros(3, VOCABULARY)
    logits_SV[:, 9], logits_SV[:, 4] = 90.0, 50.0
    editor = LogitEditor(batch.states, CustomProcessors({"forbid": Forbid()}))
    sampled = sample(logits_SV, batch.rows, editor)
    assert sampled.token_ids.tolist() == [4, 9]
    assert sampled.is_sampled.tolist() == [True, False, True]
    assert "logits processor 'forbid': IndexError" in sampled.errors[1]


class Overflow:
    """A custom processor that would force a token by logits no draw can follow."""

    def apply(self, logits_V: torch.Tensor, *, argument: Any, **tokens: Any) -> torch.Tensor:
        """Add the argument to the first logit."""
        del tokens
        logits_V[0] += float(argument)
        return logits_V


class Overwrite:
    """A custom processor that writes where it must only read."""

    def apply(self, logits_V: torch.Tensor, *, prompt_ids: Any, **others: Any) -> torch.Tensor:
        """Change the prompt."""
        del others
        prompt_ids[0] = 7
        return logits_V


@pytest.mark.parametrize("argument", ["inf", "nan"])
def test_logits_that_no_draw_can_follow_fail_their_request(argument: str) -> None:
    """Infinite ones and those that are not numbers, at random and with filters too."""
    rough = SamplingParams(top_p=0.9, extra_args=(("overflow", json.dumps(argument)),))
    batch = Batch([([1], [], rough), ([1], [], SamplingParams(temperature=0.0))])
    editor = LogitEditor(batch.states, CustomProcessors({"overflow": Overflow()}))
    sampled = sample(torch.zeros(2, VOCABULARY), batch.rows, editor)
    assert sampled.token_ids.tolist() == [0]
    assert sampled.errors == {0: NO_NUMBERS}


def test_custom_processor_cannot_change_tokens() -> None:
    """A request's tokens are the runner's; the attempt fails the request."""
    batch = Batch([([1], [], SamplingParams(extra_args=(("overwrite", "1"),)))])
    editor = LogitEditor(batch.states, CustomProcessors({"overwrite": Overwrite()}))
    sampled = sample(torch.zeros(1, VOCABULARY), batch.rows, editor)
    assert "read-only" in sampled.errors[0]
    assert batch.states.tokens.values[batch.slots[0], 0] == 1


def test_custom_processors_come_from_entry_points() -> None:
    """An entry point's class is made under the entry point's name; one that is missing is named."""
    entry = EntryPoint("forbid", f"{__name__}:Forbid", "stepwire.logits_processors")
    missing = EntryPoint("gone", f"{__name__}:Gone", "stepwire.logits_processors")
    with pytest.raises(ModelError, match="logits processor 'gone' does not load"):
        load_custom_processors([missing])
    assert load_custom_processors([entry]).names == ("forbid",)
