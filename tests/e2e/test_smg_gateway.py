"""Unmodified `smg` and the stock `openai` client in front of a coordinator with two stages.

What the gateway answers is compared with what the coordinator's own HTTP answers: the tokens are the
same, and the text is made of them on either side of the wire.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from openai import OpenAI
from openai.types import CompletionUsage

from coordinator.engine.cluster_status import ClusterStatus
from tests.fakes.coordinator_process import (
    TINY_LIMITS,
    CoordinatorProcess,
    coordinator_process,
    wait_for,
)
from tests.fakes.smg_gateway import smg_gateway
from tests.fakes.tiny_checkpoint import write_tiny_llama

STORY = {"model": "tiny", "messages": [{"role": "user", "content": "Tell me a story."}]}
STORY |= {"max_tokens": 8, "temperature": 0}
TEXT = {"model": "tiny", "prompt": "hello", "max_tokens": 8, "temperature": 0}
LONG_TOKENS = 2000
LONG = {"max_tokens": LONG_TOKENS, "extra_body": {"ignore_eos": True}}
NUM_RUNNING = 2
LEAVING_SECONDS = 1.0
PATIENCE_SECONDS = 30.0


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[CoordinatorProcess]:
    """`stepwire up --pp 2` with a tiny model, two sequences at a time."""
    model = write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny", num_layers=2)
    limits = [*TINY_LIMITS, f"--max-num-seqs={NUM_RUNNING}"]
    with coordinator_process(
        "up", f"--model={model}", "--pp=2", "--device=cpu", *limits
    ) as process:
        yield process


@pytest.fixture(scope="module")
def gateway(server, tmp_path_factory) -> Iterator[OpenAI]:
    """A client of the gateway that gives up at the first error."""
    log = tmp_path_factory.mktemp("smg") / "log"
    with (
        smg_gateway(server.grpc_address, log=log) as url,
        OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def direct(server) -> Iterator[OpenAI]:
    """A client of the coordinator itself."""
    with OpenAI(base_url=f"{server.http_url}/v1", api_key="none", max_retries=0) as client:
        yield client


def counts(usage: CompletionUsage | None) -> tuple[int, int]:
    """Tokens of the prompt and of the answer."""
    assert usage is not None
    return usage.prompt_tokens, usage.completion_tokens


def wait_until(server: CoordinatorProcess, **expected: int) -> ClusterStatus:
    """Wait until these counts of the status are reached."""
    return wait_for(
        server.client,
        lambda status: all(getattr(status, name) == value for name, value in expected.items()),
        seconds=PATIENCE_SECONDS,
    )


def wait_until_idle(server: CoordinatorProcess) -> ClusterStatus:
    """Wait until nothing waits or runs and every block is free."""
    status = wait_until(server, num_waiting=0, num_running=0)
    return wait_until(server, num_free_blocks=status.num_blocks)


def num_generated(before: ClusterStatus, after: ClusterStatus) -> int:
    """Tokens between two moments: fewer than were asked for when a request was freed early."""
    return after.num_generated_tokens - before.num_generated_tokens


def test_chat(gateway, direct):
    """An answer has the same text, end and counts through the gateway, whole and streamed."""
    whole, own = (client.chat.completions.create(**STORY) for client in (gateway, direct))
    assert whole.choices[0].message.content == own.choices[0].message.content
    assert whole.choices[0].finish_reason == own.choices[0].finish_reason
    assert counts(whole.usage) == counts(own.usage)
    options = STORY | {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, last = list(gateway.chat.completions.create(**options))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == own.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == own.choices[0].finish_reason
    assert counts(last.usage) == counts(own.usage)


def test_completions(gateway, direct):
    """A completion has the same text, end and counts through the gateway, whole and streamed."""
    whole, own = (client.completions.create(**TEXT) for client in (gateway, direct))
    assert whole.choices[0].text == own.choices[0].text
    assert whole.choices[0].finish_reason == own.choices[0].finish_reason == "length"
    assert counts(whole.usage) == counts(own.usage)
    options = TEXT | {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, last = list(gateway.completions.create(**options))
    assert "".join(chunk.choices[0].text for chunk in chunks) == own.choices[0].text
    assert counts(last.usage) == counts(own.usage)


@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities(gateway, direct, stream):
    """Tokens, their log-probabilities and the best ones are the same through the gateway."""
    options = STORY | {"logprobs": True, "top_logprobs": 2}
    own = direct.chat.completions.create(**options).choices[0].logprobs.content
    if stream:
        chunks = gateway.chat.completions.create(**options, stream=True)
        parts = [chunk.choices[0].logprobs for chunk in chunks]
        entries = [entry for part in parts if part for entry in part.content]
    else:
        entries = gateway.chat.completions.create(**options).choices[0].logprobs.content
    assert [entry.token for entry in entries] == [entry.token for entry in own]
    for entry, mine in zip(entries, own, strict=True):
        best, own_best = entry.top_logprobs, mine.top_logprobs
        assert entry.logprob == pytest.approx(mine.logprob, abs=1e-4)
        assert [top.token for top in best] == [top.token for top in own_best]
        assert [top.logprob for top in best] == pytest.approx(
            [top.logprob for top in own_best], abs=1e-4
        )


def test_several_outputs(gateway, direct):
    """Each of two outputs is the one that its seed gives, and the prompt is counted once."""
    options = STORY | {"temperature": 1.0, "seed": 7, "n": 2}
    both = gateway.chat.completions.create(**options)
    alone = [direct.chat.completions.create(**options | {"n": 1, "seed": seed}) for seed in (7, 8)]
    assert [choice.index for choice in both.choices] == [0, 1]
    # A character that the last token leaves open is the business of whoever makes the text.
    texts = [choice.message.content.rstrip("\ufffd") for choice in both.choices]
    own = [answer.choices[0].message.content.rstrip("\ufffd") for answer in alone]
    assert texts == own
    assert texts[0] != texts[1]
    assert both.usage.prompt_tokens == alone[0].usage.prompt_tokens


@pytest.mark.parametrize("stream", [False, True])
def test_stop(gateway, direct, stream):
    """A stop string ends the answer at the same token, is cut off, and is named."""
    text = direct.completions.create(**TEXT).choices[0].text
    stop = text[2:4]
    options = TEXT | {"stop": [stop]}
    own = direct.completions.create(**options)
    answer = gateway.completions.create(
        **options, stream=stream, **({"stream_options": {"include_usage": True}} if stream else {})
    )
    if stream:
        *chunks, last = list(answer)
        written, reason = "".join(chunk.choices[0].text for chunk in chunks), chunks[-1].choices[0]
    else:
        written, reason, last = answer.choices[0].text, answer.choices[0], answer
        assert reason.matched_stop == stop
    assert written == own.choices[0].text == text[: text.index(stop)]
    assert reason.finish_reason == own.choices[0].finish_reason == "stop"
    assert counts(last.usage) == counts(own.usage)


@pytest.mark.parametrize(
    "edits",
    [
        {"frequency_penalty": 2.0},
        {"presence_penalty": 2.0},
        {"extra_body": {"repetition_penalty": 1.8}},
    ],
)
def test_edits_of_logits(gateway, direct, edits):
    """Penalties change the answer, and as they do without the gateway."""
    texts = [
        client.chat.completions.create(**STORY | {"max_tokens": 24} | added).choices[0]
        for client, added in ((gateway, edits), (direct, edits), (direct, {}))
    ]
    # A character that the last token leaves open is the business of whoever makes the text.
    changed, own, plain = (choice.message.content.rstrip("\ufffd") for choice in texts)
    assert changed == own != plain


def test_a_bad_value_is_a_bad_request(gateway):
    """A refusal reaches the client with the name of the field, and the next request works."""
    with pytest.raises(openai.BadRequestError, match="stop: 300 characters are too many"):
        gateway.completions.create(**TEXT, stop=["x" * 300])
    assert gateway.completions.create(**TEXT).choices[0].finish_reason == "length"


def test_leaving_a_stream_frees_the_blocks(gateway, server):
    """A closed stream gives all blocks back before its tokens have ended."""
    before = wait_until_idle(server)
    stream = gateway.completions.create(**TEXT | LONG, stream=True)
    next(iter(stream))
    wait_until(server, num_running=1)
    stream.close()
    assert num_generated(before, wait_until_idle(server)) < LONG_TOKENS


@pytest.mark.parametrize("stream", [False, True])
def test_leaving_before_the_first_byte_frees_the_request(gateway, direct, server, stream):
    """A client that gives up while its request waits for its turn leaves nothing in the queue."""
    before = wait_until_idle(server)
    holders = [
        direct.completions.create(**TEXT | LONG | {"prompt": text}, stream=True)
        for text in ("a", "b")
    ]
    wait_until(server, num_running=NUM_RUNNING)
    with ThreadPoolExecutor(1) as pool:
        options = TEXT | LONG | {"stream": stream, "timeout": LEAVING_SECONDS}
        left = pool.submit(gateway.completions.create, **options)
        wait_until(server, num_waiting=1)
        assert isinstance(left.exception(), openai.APITimeoutError)
    freed = wait_until(server, num_waiting=0)
    assert freed.num_running == NUM_RUNNING
    # Had it waited for its turn, both who held its place would have had nearly all their tokens.
    assert num_generated(before, freed) < 1.5 * LONG_TOKENS
    for holder in holders:
        holder.close()
    wait_until_idle(server)


def test_leaving_an_answer_in_one_piece_frees_the_blocks(gateway, server):
    """A client that gives up on an answer that is not streamed ends its request."""
    before = wait_until_idle(server)
    with ThreadPoolExecutor(1) as pool:
        left = pool.submit(gateway.completions.create, **TEXT | LONG, timeout=LEAVING_SECONDS)
        wait_until(server, num_running=1)
        assert isinstance(left.exception(), openai.APITimeoutError)
    assert num_generated(before, wait_until_idle(server)) < LONG_TOKENS
