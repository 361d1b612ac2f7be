"""A conversation grows turn by turn, survives errors and interruptions, and ends when asked to."""

from collections.abc import Callable, Generator, Iterator

import pytest

from common.errors import ContextLengthExceeded, ServiceError, Unavailable
from coordinator.chat_session import ChatSession
from coordinator.engine.generation import ChatTurn, TextDelta

Turns = tuple[ChatTurn, ...]


def delta(text: str) -> TextDelta:
    """A piece of an answer."""
    return TextDelta(text=text, token_ids=(1,), num_prompt_tokens=0, num_generated_tokens=1)


class Model:
    """Answers "one two" in two pieces; raises what a test puts in its way after the first."""

    def __init__(self) -> None:
        self.asked: list[Turns] = []
        self.interruption: BaseException | None = None
        self.num_open = 0

    def ask(self, turns: Turns) -> Generator[TextDelta]:
        """Stream the answer to a conversation."""
        self.asked.append(turns)
        self.num_open += 1
        try:
            yield delta("one ")
            if self.interruption is not None:
                interruption, self.interruption = self.interruption, None
                raise interruption
            yield delta("two")
        finally:
            self.num_open -= 1


def reader(lines: Iterator[str | BaseException]) -> Callable[[], str]:
    """Reads these lines, raising those that are exceptions, then the end of input."""

    def read_line() -> str:
        line = next(lines, EOFError())
        if isinstance(line, BaseException):
            raise line
        return line

    return read_line


def talk(
    model: Model, *lines: str | BaseException, system: str | None = None
) -> tuple[ChatSession, str]:
    """A session over these lines, and all that it wrote."""
    written: list[str] = []
    session = ChatSession(
        ask=model.ask, read_line=reader(iter(lines)), write=written.append, system=system
    )
    session.run()
    return session, "".join(written)


def spoken(turns: Turns) -> list[tuple[str, str]]:
    """Roles and words."""
    return [(turn.role, turn.content) for turn in turns]


def test_every_question_carries_the_conversation():
    """The second question comes with the first and its answer."""
    model = Model()
    _, written = talk(model, "hello", "", "  more  ")
    assert written == "one two\none two\n"
    assert spoken(model.asked[1]) == [
        ("user", "hello"),
        ("assistant", "one two"),
        ("user", "more"),
    ]


def test_reset_begins_anew_and_keeps_the_system_turn():
    """What the model was told before the conversation stays."""
    model = Model()
    talk(model, "hello", "/reset", "again", system="Be brief.")
    assert spoken(model.asked[1]) == [("system", "Be brief."), ("user", "again")]


def test_quit_leaves_and_unknown_commands_are_told():
    """Nothing after /quit is read; a word with a slash is no question."""
    model = Model()
    _, written = talk(model, "/help", "/rest", "/quit", "never asked")
    assert "/reset" in written
    assert "there is no command /rest" in written
    assert model.asked == []


def test_a_path_is_a_question():
    """Only a single word after the slash is a command."""
    model = Model()
    talk(model, "/etc/hosts holds what?")
    assert spoken(model.asked[0]) == [("user", "/etc/hosts holds what?")]


def test_an_answer_can_be_stopped():
    """Ctrl-C ends the call and keeps what was said; the conversation goes on."""
    model = Model()
    model.interruption = KeyboardInterrupt()
    session, written = talk(model, "hello", "more")
    assert written == "one  [stopped]\none two\n"
    assert spoken(session.turns)[1] == ("assistant", "one ")
    assert model.num_open == 0


def test_interrupting_the_prompt_does_not_leave():
    """Ctrl-C without an answer gives up a line and says how to leave."""
    model = Model()
    _, written = talk(model, KeyboardInterrupt(), "hello")
    assert written == "\n/quit or Ctrl-D leaves\none two\n"


@pytest.mark.parametrize(
    ("error", "hint"), [(Unavailable("full"), "full"), (ContextLengthExceeded("long"), "/reset")]
)
def test_a_failed_question_can_be_asked_again(error: ServiceError, hint: str):
    """An error is told, the call is closed, and the conversation is as before the question."""
    model = Model()
    model.interruption = error
    session, written = talk(model, "hello", "hello")
    assert f"error: {error}" in written
    assert hint in written
    assert spoken(session.turns) == [("user", "hello"), ("assistant", "one two")]
    assert model.num_open == 0
