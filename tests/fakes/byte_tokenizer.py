"""A tokenizer of 256 bytes and four specials: token id b is the byte b, so tests can read tokens.

It is a real `tokenizers.Tokenizer`, so what is tested with it runs unchanged on real models.
"""

from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

BOS, EOS, TURN_START, TURN_END = "<|bos|>", "<|eos|>", "<|turn|>", "<|end|>"
BOS_ID, EOS_ID, TURN_START_ID, TURN_END_ID = 256, 257, 258, 259
VOCAB_SIZE = 260

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|turn|>{{ message['role'] }}\n{{ message['content'] }}<|end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)


def byte_characters() -> list[str]:
    """The printable character that stands for each byte in a byte-level vocabulary, [256]."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    characters = {byte: chr(byte) for byte in printable}
    others = [byte for byte in range(256) if byte not in characters]
    characters |= {byte: chr(256 + index) for index, byte in enumerate(others)}
    return [characters[byte] for byte in range(256)]


def byte_tokenizer() -> Tokenizer:
    """Build the tokenizer: no merges, nothing added to a plain prompt."""
    vocab = {character: byte for byte, character in enumerate(byte_characters())}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    specials = (BOS, EOS, TURN_START, TURN_END)
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in specials])
    return tokenizer


def write_byte_tokenizer(folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja into a model folder."""
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        f'{{"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "{BOS}", "eos_token": "{EOS}"}}'
    )
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
