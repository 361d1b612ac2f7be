"""What the fields of a request do to real tokens, through the stock `openai` client."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest
import torch
from openai import OpenAI
from transformers import AutoModelForCausalLM, PreTrainedModel

from tests.fakes.byte_tokenizer import TURN_END
from tests.fakes.running_coordinator import RunningCoordinator, running_coordinator
from tests.fakes.tiny_checkpoint import write_tiny_llama

PROMPT = list(b"the quick brown fox jumps")
CLOSE = 1e-3
BLOCK_SIZE = 16
WARM_UP_TOKENS = 1
FLAGS: dict[str, Any] = {
    "executor": "local",
    "pp": 2,
    "dtype": "float32",
    "block_size": BLOCK_SIZE,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 16,
    "kv_cache_bytes": 4 << 20,
}
LETTERS = range(32, 127)
"""Tokens that stand for a character each; half of the others look alike as text."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny model whose tokens are bytes."""
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny", num_layers=2)


@pytest.fixture(scope="module")
def server(folder) -> Iterator[RunningCoordinator]:
    """Two stages in float32, prompts in chunks of 16 tokens."""
    with running_coordinator(FLAGS | {"model": str(folder)}) as running:
        yield running


@pytest.fixture(scope="module")
def client(server) -> Iterator[OpenAI]:
    """An OpenAI client that gives up at the first error."""
    with OpenAI(base_url=f"{server.http_url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def model(folder) -> PreTrainedModel:
    """The reference."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def complete(client: OpenAI, prompt: Any = None, **options: Any) -> Any:
    """A greedy completion past any end of sequence; fields of vLLM's go in `extra_body`."""
    asked: dict[str, Any] = {"model": "tiny", "max_tokens": 16, "temperature": 0} | options
    asked["extra_body"] = {"ignore_eos": True} | asked.get("extra_body", {})
    return client.completions.create(prompt=PROMPT if prompt is None else prompt, **asked)


def tokens(answer: Any, index: int = 0) -> list[str]:
    """The tokens of an answer that was asked for log-probabilities."""
    return answer.choices[index].logprobs.tokens


def reference_logprobs(model: PreTrainedModel, token_ids: list[int]) -> torch.Tensor:
    """Log-probabilities [tokens, vocabulary] of what follows each token."""
    with torch.inference_mode():
        return model(torch.tensor([token_ids])).logits[0].log_softmax(dim=-1)


def test_a_bias_forces_and_forbids_a_token(client):
    """+100 makes every token that one, -100 keeps the best one out."""
    plain = tokens(complete(client, logprobs=1))
    forced = tokens(complete(client, logprobs=1, logit_bias={"65": 100}))
    assert set(forced) == {"A"}
    best = ord(plain[0]) if len(plain[0]) == 1 else None
    assert best is not None
    forbidden = tokens(complete(client, logprobs=1, logit_bias={str(best): -100}))
    assert plain[0] not in forbidden


def test_only_allowed_tokens_are_drawn(client):
    """Also at random."""
    extra = {"allowed_token_ids": [65, 66, 67]}
    answer = complete(client, logprobs=1, temperature=1.5, seed=3, max_tokens=40, extra_body=extra)
    assert set(tokens(answer)) <= {"A", "B", "C"}
    assert len(set(tokens(answer))) > 1


def test_bad_words_never_appear(client):
    """A word of several tokens is not written to its end, though its beginning may be."""
    extra = {"allowed_token_ids": [65, 66]}
    options = {"temperature": 1.0, "seed": 5, "max_tokens": 60}
    plain = complete(client, extra_body=extra, **options).choices[0].text
    without = complete(client, extra_body=extra | {"bad_words": ["AAA"]}, **options).choices[0].text
    assert "AAA" in plain
    assert "AAA" not in without
    assert "AA" in without


def test_min_tokens_holds_the_end_back(client):
    """A stop token cannot be drawn before; after it, it ends the output."""
    extra = {"stop_token_ids": [65], "allowed_token_ids": [65, 90]}
    bias = {"65": 100}
    at_once = complete(client, logit_bias=bias, extra_body=extra)
    assert (at_once.choices[0].finish_reason, at_once.usage.completion_tokens) == ("stop", 1)
    later = complete(client, logit_bias=bias, extra_body=extra | {"min_tokens": 7})
    assert (later.choices[0].finish_reason, later.usage.completion_tokens) == ("stop", 8)
    assert later.choices[0].text == "Z" * 7


def test_special_tokens_are_text_where_they_are_asked_for(client):
    """Drawn in the middle they are left out by default; the one that ends the output always is."""
    options = {"logit_bias": {"259": 100}, "max_tokens": 2}
    assert complete(client, **options).choices[0].text == ""
    shown = complete(client, extra_body={"skip_special_tokens": False}, **options)
    assert shown.choices[0].text == f"{TURN_END}{TURN_END}"
    ended = {"skip_special_tokens": False, "stop_token_ids": [259]}
    assert complete(client, extra_body=ended, **options).choices[0].text == ""


def test_penalties_equal_the_reference(client, model):
    """Greedy tokens are those of a loop over the reference's logits with the formulas written out."""
    answer = complete(
        client,
        logprobs=1,
        max_tokens=24,
        presence_penalty=0.7,
        frequency_penalty=0.4,
        extra_body={"repetition_penalty": 1.4, "allowed_token_ids": list(LETTERS)},
    )
    output: list[int] = []
    for _ in range(24):
        logits = reference_logits(model, PROMPT + output)
        for token in set(PROMPT + output):
            logits[token] = logits[token] / 1.4 if logits[token] > 0 else logits[token] * 1.4
        for token in set(output):
            logits[token] -= 0.4 * output.count(token) + 0.7
        output.append(max(LETTERS, key=lambda token: float(logits[token])))
    assert tokens(answer) == [chr(token) for token in output]


def reference_logits(model: PreTrainedModel, token_ids: list[int]) -> torch.Tensor:
    """Logits [vocabulary] behind the last token."""
    with torch.no_grad():
        return model(torch.tensor([token_ids])).logits[0, -1].clone()


@pytest.mark.parametrize("logprobs", [0, 3])
def test_log_probabilities_equal_the_reference(client, model, logprobs):
    """Chosen tokens and alternatives, behind a prompt in chunks and behind one from the cache."""
    prompt = list(b"a prompt that is longer than the sixteen tokens of a step")
    for _ in range(2):
        extra = {"allowed_token_ids": list(LETTERS)}
        answer = complete(client, prompt, logprobs=logprobs, max_tokens=6, extra_body=extra)
        said = answer.choices[0].logprobs
        output = [ord(token) for token in said.tokens]
        expected = reference_logprobs(model, prompt + output)[len(prompt) - 1 : -1]
        for row, (token, value) in enumerate(zip(output, said.token_logprobs, strict=True)):
            assert abs(value - float(expected[row, token])) < CLOSE
            best = expected[row].topk(logprobs).indices.tolist()
            texts = {chr(token) if token < 128 else "\ufffd" for token in best}
            assert set(said.top_logprobs[row]) == texts
            for text, value in said.top_logprobs[row].items():
                if text != "\ufffd":
                    assert abs(value - float(expected[row, ord(text)])) < CLOSE
    assert answer.usage.prompt_tokens_details.cached_tokens > 0


def test_echo_gives_the_prompt_with_its_log_probabilities(client, model):
    """Nothing is generated with max_tokens 0; offsets point into the text; the first token has none."""
    text = "a prompt that is longer than sixteen tokens"
    echoed = complete(client, text, echo=True, logprobs=2, max_tokens=0)
    choice = echoed.choices[0]
    assert (choice.text, choice.finish_reason) == (text, "length")
    assert echoed.usage.completion_tokens == 0
    said = choice.logprobs
    assert said.tokens == list(text)
    assert [text[at] for at in said.text_offset] == list(text)
    assert (said.token_logprobs[0], said.top_logprobs[0]) == (None, None)
    expected = reference_logprobs(model, list(text.encode()))
    for row, token in enumerate(text.encode()[1:]):
        assert abs(said.token_logprobs[row + 1] - float(expected[row, token])) < CLOSE
    longer = complete(client, text, echo=True, logprobs=2, max_tokens=3, n=2)
    for choice in longer.choices:
        assert choice.text.startswith(text)
        assert len(choice.logprobs.tokens) == len(text) + 3
        assert choice.logprobs.token_logprobs[: len(text)] == said.token_logprobs


def test_prompt_logprobs_of_all_tokens(client, model):
    """-1 names every token of the vocabulary, with its rank; several outputs share them."""
    answer = complete(client, max_tokens=1, n=2, extra_body={"prompt_logprobs": -1})
    expected = reference_logprobs(model, PROMPT)
    assert answer.choices[1].prompt_logprobs == answer.choices[0].prompt_logprobs
    first, *positions = answer.choices[0].prompt_logprobs
    assert first is None
    assert len(positions) == len(PROMPT) - 1
    for row, position in enumerate(positions):
        assert len(position) == expected.shape[1]
        entry = position[str(PROMPT[row + 1])]
        assert abs(entry["logprob"] - float(expected[row, PROMPT[row + 1]])) < CLOSE
        assert entry["rank"] == int((expected[row] >= expected[row, PROMPT[row + 1]]).sum())


def test_a_prompt_is_told_over_grpc(server, client):
    """Text, first token and log-probabilities are those that HTTP tells."""
    options = {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 1}
    prompt = server.client.complete("hello", echo=True, **options).prompt
    assert (prompt.text, prompt.first_token.text) == ("hello", "h")
    extra = {"prompt_logprobs": 1}
    told = complete(client, "hello", max_tokens=1, extra_body=extra).choices[0].prompt_logprobs
    assert told[0] is None
    for position, by_id in zip(prompt.logprobs, told[1:], strict=True):
        entry = by_id[str(position.chosen.token_id)]
        assert abs(position.chosen.logprob - entry["logprob"]) < CLOSE
        assert position.rank == entry["rank"]


def test_outputs_of_a_prompt_share_its_blocks(folder):
    """Several outputs of a new prompt compute it once; what the workers counted says so."""
    prompt = list(b"a prompt nobody has asked before, and it has quite a few blocks of tokens")
    rest = len(prompt) - (len(prompt) - 1) // BLOCK_SIZE * BLOCK_SIZE
    expected = WARM_UP_TOKENS + len(prompt) + 3 * rest
    with (
        running_coordinator(FLAGS | {"model": str(folder)}) as running,
        OpenAI(base_url=f"{running.http_url}/v1", api_key="none", max_retries=0) as client,
    ):
        answer = complete(client, prompt, n=4, temperature=1.0, seed=1, max_tokens=4)
        # A worker tells its counts a few times a second.
        status = running.wait_until(
            lambda status: all(worker.num_prefill_tokens >= expected for worker in status.workers)
        )
    assert len({choice.text for choice in answer.choices}) > 1
    assert [worker.num_prefill_tokens for worker in status.workers] == [expected] * 2


def test_an_argument_of_no_processor_is_refused(client):
    """The error names the field and what there is."""
    with pytest.raises(openai.BadRequestError, match="vllm_xargs: the workers have no logits"):
        complete(client, extra_body={"vllm_xargs": {"lower": 1}})
