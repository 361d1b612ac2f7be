"""Prompts become the token ids the model was trained on."""

import asyncio

import pytest
from tokenizers import processors

from common.errors import InvalidRequest, ModelError
from common.model_folder import ModelFolder
from coordinator.text.chat_template import ChatTemplate
from coordinator.text.tokenizer import Tokenizer
from tests.fakes.byte_tokenizer import (
    BOS,
    BOS_ID,
    CHAT_TEMPLATE,
    EOS,
    TURN_END_ID,
    TURN_START_ID,
    byte_tokenizer,
    write_byte_tokenizer,
)


def tokenizer_with_bos() -> Tokenizer:
    """A tokenizer whose post-processor begins a plain prompt with the BOS token."""
    file = byte_tokenizer()
    file.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, BOS_ID)]
    )
    return Tokenizer(file, template=ChatTemplate(CHAT_TEMPLATE))


async def test_a_plain_prompt_gets_the_post_processors_tokens():
    """BOS is added to text as the model's own file says."""
    assert await tokenizer_with_bos().encode_text("hi") == (BOS_ID, *b"hi")


async def test_a_conversation_gets_only_the_templates_tokens():
    """A rendered conversation is encoded as it stands; special tokens in it are recognized."""
    token_ids = await tokenizer_with_bos().encode_chat([{"role": "user", "content": "hi"}])
    question = (TURN_START_ID, *b"user\nhi", TURN_END_ID, *b"\n")
    assert token_ids == (*question, TURN_START_ID, *b"assistant\n")


async def test_without_a_template_conversations_are_refused():
    """A base model answers completions only, and the refusal says so."""
    with pytest.raises(InvalidRequest, match="chat template") as caught:
        await Tokenizer(byte_tokenizer(), template=None).encode_chat([])
    assert caught.value.param == "messages"


async def test_truncation_stored_with_the_model_is_ignored():
    """A prompt longer than the training run's limit is encoded whole."""
    file = byte_tokenizer()
    file.enable_truncation(3)
    file.enable_padding(length=8)
    assert await Tokenizer(file, template=None).encode_text("abcdef") == tuple(b"abcdef")


async def test_encoding_leaves_the_event_loop_free():
    """Another task runs while a prompt is encoded."""
    ran = asyncio.Event()
    task = asyncio.create_task(Tokenizer(byte_tokenizer(), template=None).encode_text("a" * 5000))
    asyncio.get_running_loop().call_soon(ran.set)
    await ran.wait()
    assert not task.done()
    assert len(await task) == 5000


def test_tokens_have_their_bytes():
    """A byte token is its byte, a special token its name, an unknown id nothing."""
    tokenizer = Tokenizer(byte_tokenizer(), template=None)
    assert [tokenizer.token_bytes(token_id) for token_id in (0, 0xC3, BOS_ID, 9999)] == [
        b"\0",
        b"\xc3",
        BOS.encode(),
        b"",
    ]


def folder(path) -> ModelFolder:
    """A model folder at the path with the byte tokenizer's special tokens."""
    return ModelFolder(
        path=path,
        name="tiny",
        vocab_size=260,
        num_layers=1,
        max_position_embeddings=64,
        eos_token_ids=frozenset(),
        chat_template="{{ eos_token }}",
        bos_token=BOS,
        eos_token=EOS,
        dtype="float32",
    )


async def test_a_model_folder_has_tokenizer_and_template(tmp_path):
    """Both come from the folder, with the special tokens its files name."""
    write_byte_tokenizer(tmp_path)
    tokenizer = Tokenizer.from_folder(folder(tmp_path))
    assert tokenizer.decode(await tokenizer.encode_text("h\u00e9")) == "h\u00e9"
    assert len(await tokenizer.encode_chat([])) == 1


@pytest.mark.parametrize("content", [None, "{}"])
def test_a_missing_or_broken_file_is_named(tmp_path, content):
    """The error says which file cannot be used."""
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        Tokenizer.from_folder(folder(tmp_path))
