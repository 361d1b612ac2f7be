"""Outputs that a schema, a regular expression or a grammar holds, from real tokens over HTTP and gRPC.

`pytest -m soak tests/e2e/test_structured_output.py` asks 200 times; the ordinary run asks a few times.
"""

import json
import random
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from jsonschema import Draft202012Validator
from openai import OpenAI

from common.config_loader import cache_folder
from common.model_folder import resolve_model
from tests.fakes.running_coordinator import RunningCoordinator, running_coordinator

MODEL = "smollm2-135m"
CONCURRENCY = 16
MAX_TOKENS = 400
WORDS = ("red", "grün", "蓝色", "très clair", 'quo"ted', "back\\slash")


@pytest.fixture(scope="module")
def server() -> Iterator[RunningCoordinator]:
    """Two stages, asynchronous, with drafts that are looked up."""
    flags = {"model": str(resolve_model(MODEL, cache=cache_folder())), "executor": "local"}
    flags |= {"pp": 2, "speculative_method": "ngram", "max_model_len": 1024}
    with running_coordinator(flags) as running:
        yield running


@pytest.fixture(scope="module")
def client(server) -> Iterator[OpenAI]:
    """An OpenAI client that gives up at the first error."""
    with OpenAI(base_url=f"{server.http_url}/v1", api_key="none", max_retries=0) as client:
        yield client


def random_schema(draw: random.Random) -> dict[str, Any]:
    """At least three required fields, nesting, enums, minItems, a reference and unicode, all bounded."""
    short = {"type": "string", "maxLength": draw.randint(4, 24)}
    item = {
        "type": "object",
        "properties": {
            "label": {"enum": draw.sample(WORDS, 3)},
            "amount": {"type": "integer", "minimum": 0, "maximum": draw.randint(5, 900)},
            "note": short,
        },
        "required": ["label", "amount"],
        "additionalProperties": False,
    }
    least = draw.randint(1, 2)
    schema = {
        "$defs": {"item": item},
        "type": "object",
        "properties": {
            "name": short,
            "größe": {"type": "number", "minimum": 0, "maximum": 9, "multipleOf": 0.5},
            "items": {
                "type": "array",
                "items": {"$ref": "#/$defs/item"},
                "minItems": least,
                "maxItems": least + 1,
            },
            "inner": {
                "type": "object",
                "properties": {"flag": {"type": "boolean"}, "kind": {"const": draw.choice(WORDS)}},
                "required": ["flag", "kind"],
                "additionalProperties": False,
            },
            "tag": {"anyOf": [{"type": "null"}, {"type": "string", "pattern": "^[a-z]{2,6}$"}]},
        },
        "required": ["name", "items", "inner", "tag"],
        "additionalProperties": False,
    }
    if draw.random() < 0.5:
        schema["properties"]["größe"] = {"enum": [1, 2.5, None]}
        schema["required"].append("größe")
    else:
        del schema["properties"]["größe"]
    return schema


def ask(client: OpenAI, number: int) -> int:
    """Ask for one document of a schema and check it; the number of its tokens."""
    draw = random.Random(number)
    schema = random_schema(draw)
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": f"Describe product number {number} as JSON."}],
        temperature=draw.choice([0.0, 1.0]),
        seed=number,
        max_tokens=MAX_TOKENS,
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "product", "schema": schema, "strict": True},
        },
    )
    (choice,) = answer.choices
    assert choice.finish_reason == "stop", choice
    Draft202012Validator(schema).validate(json.loads(choice.message.content or ""))
    return answer.usage.completion_tokens if answer.usage else 0


def ask_all(client: OpenAI, count: int) -> float:
    """Ask so many times, 16 at once; the mean number of tokens."""
    with ThreadPoolExecutor(CONCURRENCY) as threads:
        counts = list(threads.map(lambda number: ask(client, number), range(count)))
    return sum(counts) / count


def test_documents_are_valid_for_their_schemas(server, client) -> None:
    """Every one parses and validates; their sequences are gone afterwards."""
    assert ask_all(client, 12) >= 30
    status = server.wait_until_idle()
    assert (status.num_invalid_steps, status.generation) == (0, 1)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_many_documents_are_valid_for_their_schemas(server, client) -> None:
    """200 of them, of at least 40 tokens in the mean, with drafts checked and accepted meanwhile."""
    mean = ask_all(client, 200)
    print(f"\nmean tokens of a document: {mean:.1f}")  # noqa: T201 - shown by pytest -s
    assert mean >= 40
    status = server.wait_until_idle()
    assert (status.num_invalid_steps, status.generation) == (0, 1)


def complete(client: OpenAI, **options: Any) -> Any:
    """A completion of the model."""
    asked: dict[str, Any] = {"prompt": "Answer: ", "max_tokens": 40, "temperature": 0} | options
    return client.completions.create(model=MODEL, **asked)


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"structured_outputs": {"regex": "[0-9]{3}-[a-z]{2,4}"}}, "[0-9]{3}-[a-z]{2,4}"),
        ({"guided_regex": "(ab|ba){2}"}, "(ab|ba){2}"),
        ({"structured_outputs": {"choice": ["yes", "nö", "perhaps"]}}, "yes|nö|perhaps"),
        ({"guided_choice": ["left", "right"]}, "left|right"),
        ({"structured_outputs": {"grammar": 'root ::= "x" | "y" "z"'}}, "x|yz"),
        ({"guided_grammar": 'start: ("a" | "b")~4'}, "[ab]{4}"),
        ({"guided_json": {"enum": ["one", "two"]}}, '"one"|"two"'),
    ],
)
def test_every_field_holds_its_output(client, fields, pattern, temperature) -> None:
    """vLLM's fields, new and old, greedy and drawn."""
    answer = complete(client, temperature=temperature, seed=5, extra_body=fields)
    (choice,) = answer.choices
    assert re.fullmatch(pattern, choice.text), choice.text
    assert choice.finish_reason == "stop"


def test_grpc_holds_its_output(server) -> None:
    """The constraint arms of Generate."""
    one_of = server.client.complete("Answer: ", max_tokens=20, choice=["yes", "no"])
    assert one_of.text in ("yes", "no")
    document = server.client.complete("A list: ", max_tokens=60, json_schema='{"enum": [["a"], 2]}')
    assert json.loads(document.text) in (["a"], 2)


def test_outputs_of_one_request_have_grammars_of_their_own(client) -> None:
    """Several outputs, streamed, each whole and valid."""
    texts = {0: "", 1: "", 2: ""}
    for chunk in complete(
        client,
        n=3,
        temperature=1.0,
        seed=1,
        stream=True,
        extra_body={"guided_regex": "[a-z]{5,9}!"},
    ):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert all(re.fullmatch("[a-z]{5,9}!", text) for text in texts.values()), texts
    assert len(set(texts.values())) > 1


def test_a_document_may_be_cut_by_its_length(client) -> None:
    """max_tokens counts more than the grammar, and says so."""
    schema = {"type": "array", "items": {"const": "again"}, "minItems": 50}
    (choice,) = complete(client, max_tokens=9, extra_body={"guided_json": schema}).choices
    assert choice.finish_reason == "length"
    assert choice.text.startswith('["again", "')


def test_neighbours_without_a_grammar_are_not_changed(client) -> None:
    """What is asked beside documents is answered as it is alone."""
    alone = complete(client, prompt="The capital of France is", max_tokens=12).choices[0].text
    with ThreadPoolExecutor(4) as threads:
        documents = [threads.submit(ask, client, number) for number in range(3)]
        beside = threads.submit(
            complete, client, prompt="The capital of France is", max_tokens=12
        ).result()
        for document in documents:
            document.result()
    assert beside.choices[0].text == alone


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"guided_regex": "("}, "regex is not valid"),
        ({"guided_json": {"type": "nothing"}}, "json_schema is not valid"),
        ({"guided_json": "{"}, "json_schema is not JSON"),
        ({"guided_choice": []}, "choice is empty"),
        ({"guided_choice": ["a", ""]}, "choice holds an empty text"),
        ({"guided_grammar": "start: gone"}, "grammar is not valid"),
        ({"guided_regex": "a" * 5000}, "regex: 5000 characters are too many"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structural_tag is not supported"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "cannot go together"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "cannot go together"),
        ({"guided_regex": 7}, "guided_regex: regex cannot be a int"),
        ({"response_format": {"type": "xml"}}, "response_format: type must be"),
        ({"response_format": {"type": "json_schema"}}, "json_schema must hold"),
    ],
)
def test_bad_constraints_are_refused(client, fields, message) -> None:
    """By field, with status 400; the next request works."""
    with pytest.raises(openai.BadRequestError, match=message):
        complete(client, extra_body=fields)
    assert complete(client, max_tokens=1).usage.completion_tokens == 1


def test_a_schema_that_is_nested_too_deeply_is_refused(client) -> None:
    """The limit is named."""
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(70):
        schema = {"type": "array", "items": schema}
    with pytest.raises(openai.BadRequestError, match="more than 64 arrays and objects"):
        complete(client, extra_body={"guided_json": schema})
