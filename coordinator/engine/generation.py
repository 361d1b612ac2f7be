"""What the APIs ask of the engine and get back: plain values, the same for every protocol."""

from dataclasses import dataclass

from common.requests import FinishReason
from common.trace_context import TraceContext
from coordinator.structured.constraint import Constraint

MAX_SEQUENCES = 1024
"""Most sequences of one request, whatever the queue holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model clients can name; max_model_len counts prompt and output, created is Unix seconds.

    max_sequences: of one request, so that an empty queue takes all of them. logits_processors: names
    of the workers' custom ones.
    """

    name: str
    max_model_len: int
    vocab_size: int
    created: int
    max_sequences: int = MAX_SEQUENCES
    logits_processors: frozenset[str] = frozenset()
    eos_token_ids: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTurn:
    """One turn of a conversation: who spoke ("system", "user" or "assistant") and what was said."""

    role: str
    content: str


Prompt = str | tuple[int, ...] | tuple[ChatTurn, ...]
"""Text, token ids, or the turns of a conversation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationInput:
    """One request as the client sent it, unchecked; None: the client left the choice to us.

    It asks for n outputs of each prompt; output c of prompt p has the index p * n + c, and the seed
    s + c when the seed s is given. model "" is the only one served. logprobs k: log-probabilities of
    the chosen token and of the k best, -1: of all; prompt_logprobs: the same of the prompt's tokens.
    echo: the prompt is part of the text; only then may max_tokens be 0. logit_bias: (token id,
    addend); bad_words: texts never to be written. extra_args: (name, JSON) for custom logits
    processors. constraint: what the output must look like. skip_special_tokens: they are not part of
    the text. priority: the smaller, the sooner, where the scheduler has priorities. trace: the
    client's span, if it told one.
    """

    request_id: str
    prompts: tuple[Prompt, ...]
    n: int | None = None
    model: str = ""
    max_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    echo: bool = False
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    min_tokens: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[str, ...] = ()
    extra_args: tuple[tuple[str, str], ...] = ()
    constraint: Constraint | None = None
    skip_special_tokens: bool = True
    priority: int | None = None
    trace: TraceContext | None = None

    @property
    def num_choices(self) -> int:
        """Outputs of each prompt."""
        return 1 if self.n is None else self.n

    @property
    def num_sequences(self) -> int:
        """Outputs of all prompts."""
        return len(self.prompts) * self.num_choices


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """A token, the bytes it stands for, and its natural log-probability."""

    token_id: int
    token_bytes: bytes
    logprob: float

    @property
    def text(self) -> str:
        """The token on its own; bytes that are no character become U+FFFD."""
        return self.token_bytes.decode("utf-8", errors="replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionLogprobs:
    """Log-probabilities at one position of the output.

    rank is the chosen token's, 1-based; text_offset counts the characters of text before it.
    """

    chosen: TokenLogprob
    rank: int
    top: tuple[TokenLogprob, ...]
    text_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptText:
    """The prompt of an output whose client wants it back, or its log-probabilities.

    text is "" unless it is echoed. first_token's logprob means nothing. logprobs: of every token but the first, when asked for; offsets
    count from the beginning of the prompt.
    """

    text: str
    first_token: TokenLogprob
    logprobs: tuple[PositionLogprobs, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta:
    """What is new in an output; finish_reason is set on the last one, and only there.

    index: which output of the request this is, counted from 0.
    Text may lag behind token_ids while a character or a possible stop string is open. logprobs: one
    per token of token_ids, when asked for. num_generated_tokens counts the output so far,
    num_cached_tokens the tokens of the prompt that were found in the prefix cache. stop_string: the
    one that ended the output. prompt: on the first delta, when the client wants it.
    """

    text: str
    token_ids: tuple[int, ...]
    num_prompt_tokens: int
    num_generated_tokens: int
    logprobs: tuple[PositionLogprobs, ...] | None = None
    finish_reason: FinishReason | None = None
    num_cached_tokens: int = 0
    index: int = 0
    stop_string: str | None = None
    prompt: PromptText | None = None
