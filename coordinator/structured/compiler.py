"""Constraints become grammars, off the event loop; those asked for lately are kept.

A grammar is compiled against the model's vocabulary. What cannot be compiled, or not within limits of
size and time, is the request's fault and is told as such, before any step is planned.
"""

import asyncio
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from llguidance import LLMatcher, LLTokenizer
from llguidance.gbnf_to_lark import any_to_lark

from common.errors import InvalidRequest
from coordinator.structured.constraint import Constraint, ConstraintKind
from coordinator.structured.matcher import Matcher

MOST_KEPT = 64
COMPILE_SECONDS = 10.0
MOST_AT_ONCE = 2
STACK_BYTES = 256 << 20
"""The library recurses over what a constraint nests, and a stack that ends takes the process with it.

The longest chain of rules that the limits let in needs less than a quarter of this.
"""
JSON_OPTIONS = {
    # As json.dumps writes: with white space left open, small models write nothing else.
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    # One of several schemas is any of them where they exclude each other; others cannot be told apart.
    "coerce_one_of": True,
}


class GrammarCompiler:
    """Compiles for one vocabulary, which is read when the first constraint comes."""

    def __init__(
        self,
        tokenizer_json: Callable[[], str],
        *,
        vocab_size: int,
        eos_token_ids: Sequence[int],
        seconds: float = COMPILE_SECONDS,
    ) -> None:
        """tokenizer_json reads a `tokenizers` file; vocab_size counts the model's logits."""
        self._tokenizer_json = tokenizer_json
        self._vocab_size = vocab_size
        self._eos_token_ids = sorted(eos_token_ids)
        self._seconds = seconds
        self._tokenizer: LLTokenizer | None = None
        self._compiled: OrderedDict[Constraint, LLMatcher] = OrderedDict()
        self._places = asyncio.Semaphore(MOST_AT_ONCE)
        self._reading = asyncio.Lock()

    @property
    def num_kept(self) -> int:
        """Compiled grammars that are kept."""
        return len(self._compiled)

    async def compile(self, constraint: Constraint) -> Callable[[], Matcher]:
        """What makes a fresh matcher for each output.

        Raises InvalidRequest saying what is wrong with the constraint.
        """
        state = self._compiled.get(constraint)
        if state is None:
            state = await self._compile(constraint)
            self._compiled[constraint] = state
            while len(self._compiled) > MOST_KEPT:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(constraint)
        return lambda: Matcher(state.deep_copy(), vocab_size=self._vocab_size)

    async def _compile(self, constraint: Constraint) -> LLMatcher:
        tokenizer = await self._read_tokenizer()
        field = constraint.kind.value
        try:
            async with asyncio.timeout(self._seconds), self._places:
                # What takes too long goes on in its thread; the library's own limits end it.
                state = await asyncio.wrap_future(_on_large_stack(tokenizer, constraint))
        except TimeoutError as error:
            raise InvalidRequest(
                f"{field} takes more than {self._seconds:g} s to compile: make it simpler",
                param=field,
            ) from error
        except ValueError as error:
            raise InvalidRequest(f"{field} is not valid: {error}", param=field) from error
        if state.is_error():
            cause = state.get_error().strip().splitlines()
            raise InvalidRequest(f"{field} is not valid: {' '.join(cause)[:400]}", param=field)
        return state

    async def _read_tokenizer(self) -> LLTokenizer:
        async with self._reading:
            if self._tokenizer is None:
                self._tokenizer = await asyncio.to_thread(
                    lambda: LLTokenizer(
                        self._tokenizer_json(),
                        n_vocab=self._vocab_size,
                        eos_token=self._eos_token_ids,
                    )
                )
        return self._tokenizer


def _on_large_stack(tokenizer: LLTokenizer, constraint: Constraint) -> Future[LLMatcher]:
    """Compile on a thread of its own; the size of a stack is told to whichever thread starts next."""
    usual = threading.stack_size(STACK_BYTES)
    try:
        # It starts within submit, and ends with what it was given.
        thread = ThreadPoolExecutor(1, thread_name_prefix="grammar")
        compiling = thread.submit(_compile, tokenizer, constraint)
        thread.shutdown(wait=False)
    finally:
        threading.stack_size(usual)
    return compiling


def _compile(tokenizer: LLTokenizer, constraint: Constraint) -> LLMatcher:
    return LLMatcher(tokenizer, _grammar(constraint), log_level=0)


def _grammar(constraint: Constraint) -> str:
    """The grammar as the library reads it; raises ValueError for what is no JSON or no grammar at all."""
    match constraint.kind:
        case ConstraintKind.JSON_SCHEMA:
            return LLMatcher.grammar_from_json_schema(constraint.text, overrides=JSON_OPTIONS)  # pyright: ignore[reportArgumentType]
        case ConstraintKind.JSON_OBJECT:
            return LLMatcher.grammar_from_json_schema('{"type": "object"}', overrides=JSON_OPTIONS)  # pyright: ignore[reportArgumentType]
        case ConstraintKind.REGEX:
            return LLMatcher.grammar_from_regex(constraint.text)
        case ConstraintKind.GRAMMAR:
            return LLMatcher.grammar_from_lark(any_to_lark(constraint.text))
        case ConstraintKind.CHOICE:
            quoted = [json.dumps(choice, ensure_ascii=False) for choice in constraint.choices]
            return LLMatcher.grammar_from_lark(f"start: {' | '.join(quoted)}")
