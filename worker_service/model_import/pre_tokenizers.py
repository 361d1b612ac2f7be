"""How text is split before it is tokenized: a GGUF file gives the method's name and no more."""

from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Sequence, Split

from common.errors import ModelError
from worker_service.model_import.gguf_metadata import GgufMetadata

LLAMA_3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT_2, SINGLE_DIGITS, LLAMA_3 = "gpt-2", "single digits", "llama 3"
METHODS = {
    "": GPT_2,
    "default": GPT_2,
    "gpt-2": GPT_2,
    "smollm": SINGLE_DIGITS,
    "llama3": LLAMA_3,
    "llama-v3": LLAMA_3,
    "llama-bpe": LLAMA_3,
}
"""Names in GGUF files, and what they mean."""


def pre_tokenizer_of(metadata: GgufMetadata) -> PreTokenizer | None:
    """The method of a byte-level vocabulary, None for others, which bring their own.

    Raises ModelError for a method that is not known: text would be read as other tokens than the model
    was trained on, which nobody would notice but by worse answers.
    """
    if metadata.vocabulary != "gpt2":
        return None
    method = METHODS.get(metadata.pre_tokenizer)
    if method is None:
        raise ModelError(
            f"its text is split by the method {metadata.pre_tokenizer!r}; "
            f"known are: {', '.join(filter(None, METHODS))}"
        )
    return _make(method)


def _make(method: str) -> PreTokenizer:
    if method == SINGLE_DIGITS:
        splits = Digits(individual_digits=True)
        return Sequence([splits, ByteLevel(add_prefix_space=False)])
    if method == LLAMA_3:
        splits = Split(Regex(LLAMA_3_SPLIT), behavior="isolated")
        return Sequence([splits, ByteLevel(add_prefix_space=False, use_regex=False)])
    return ByteLevel(add_prefix_space=False)
