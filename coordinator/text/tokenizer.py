"""One model's tokenizer: prompts to token ids off the event loop, token ids to bytes and text."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial

from tokenizers import Tokenizer as TokenizerFile

from common.errors import InvalidRequest, ModelError
from common.model_folder import ModelFolder
from coordinator.text.chat_template import ChatTemplate
from coordinator.text.detokenizer import ByteDetokenizer, Detokenizer, PieceDetokenizer
from coordinator.text.vocabulary import Vocabulary


class Tokenizer:
    """Encodes prompts as `transformers` would and makes detokenizers; holds no request."""

    def __init__(self, file: TokenizerFile, *, template: ChatTemplate | None) -> None:
        """Wrap a loaded file, of which no other user may exist; template None: no conversations."""
        # Files carry the settings of the training run; a prompt is never cut or padded here.
        file.no_truncation()
        file.no_padding()
        self._file = file
        self._template = template
        self._vocabulary = Vocabulary(file)

    @classmethod
    def from_folder(cls, folder: ModelFolder) -> "Tokenizer":
        """Read tokenizer.json of a model folder; blocks; raises ModelError when it cannot be read."""
        path = folder.path / "tokenizer.json"
        if not path.is_file():
            raise ModelError(f"{folder.path} holds no tokenizer.json")
        try:
            file = TokenizerFile.from_file(str(path))
        except Exception as error:  # the library raises nothing more exact
            raise ModelError(f"{path} cannot be read: {error}") from error
        return cls(file, template=_chat_template(folder))

    def to_json(self) -> str:
        """The file again, as `tokenizers` writes it."""
        return self._file.to_str()

    @property
    def max_token_characters(self) -> int:
        """The most characters of a text that one token takes."""
        return self._vocabulary.max_token_characters

    async def encode_text(self, text: str) -> tuple[int, ...]:
        """Encode a plain prompt, with the special tokens the model's post-processor adds."""
        return await asyncio.to_thread(self._encode, text, add_special_tokens=True)

    async def encode_words(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Every sequence of tokens a word is written by: at the beginning of a text, and behind a space."""
        spelled = [spelling for word in words for spelling in (word, f" {word.lstrip()}")]
        encodings = await asyncio.to_thread(
            self._file.encode_batch_fast, spelled, add_special_tokens=False
        )
        return tuple(dict.fromkeys(tuple(each.ids) for each in encodings if each.ids))

    async def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
        """Render and encode messages of `role` and `content`; special tokens are those the template writes.

        Raises InvalidRequest when the model has no template or its template refuses the messages.
        """
        if self._template is None:
            raise InvalidRequest(
                "messages need a chat template and the model has none: send a prompt instead",
                param="messages",
            )
        return await asyncio.to_thread(self._encode_messages, self._template, messages)

    def detokenizer(self, *, skip_special_tokens: bool = True) -> Detokenizer:
        """Make the detokenizer of one output."""
        vocabulary = self._vocabulary
        is_text = vocabulary.is_text if skip_special_tokens else vocabulary.is_known
        if vocabulary.is_byte_level:
            return ByteDetokenizer(vocabulary.token_bytes, is_text=is_text)
        decode = partial(self.decode, skip_special_tokens=skip_special_tokens)
        return PieceDetokenizer(decode, is_text=is_text, is_byte=vocabulary.is_byte)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Decode all tokens of an output at once."""
        return self._file.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token stands for on its own; a special token stands for its name."""
        return self._vocabulary.token_bytes(token_id)

    def _encode(self, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
        # Unlike `encode` it lets the event loop run meanwhile, for which a long prompt is a second.
        (encoding,) = self._file.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return tuple(encoding.ids)

    def _encode_messages(
        self, template: ChatTemplate, messages: Sequence[Mapping[str, str]]
    ) -> tuple[int, ...]:
        return self._encode(template.render(messages), add_special_tokens=False)


def _chat_template(folder: ModelFolder) -> ChatTemplate | None:
    if folder.chat_template is None:
        return None
    return ChatTemplate(
        folder.chat_template, bos_token=folder.bos_token, eos_token=folder.eos_token
    )
