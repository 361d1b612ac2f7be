"""A conversation with a model: lines in, streamed answers out. Knows no terminal and no network."""

from collections.abc import Callable, Generator
from contextlib import closing

from common.errors import ContextLengthExceeded, ServiceError
from coordinator.engine.generation import ChatTurn, TextDelta

HELP = """\
/reset   begin a new conversation
/quit    leave, as does the end of input (Ctrl-D)
/help    show this
Ctrl-C   stop an answer; what came so far is part of the conversation
"""

Ask = Callable[[tuple[ChatTurn, ...]], Generator[TextDelta]]


class ChatSession:
    """Keeps the turns of one conversation and asks for the next answer until its user leaves."""

    def __init__(
        self,
        *,
        ask: Ask,
        read_line: Callable[[], str],
        write: Callable[[str], object],
        system: str | None = None,
    ) -> None:
        """read_line gives a question, raises EOFError at the end, KeyboardInterrupt for Ctrl-C."""
        self._ask = ask
        self._read_line = read_line
        self._write = write
        self._opening = () if system is None else (ChatTurn(role="system", content=system),)
        self.turns = self._opening
        """Everything said so far, oldest first."""

    def run(self) -> None:
        """Talk until the user leaves."""
        while (line := self._next_line()) is not None:
            match line.strip():
                case "":
                    continue
                case "/quit":
                    return
                case "/reset":
                    self.turns = self._opening
                    self._write("a new conversation\n")
                case "/help":
                    self._write(HELP)
                case text if text.startswith("/") and text[1:].isalpha():
                    self._write(f"there is no command {text}; /help lists them\n")
                case text:
                    self._answer(text)

    def _next_line(self) -> str | None:
        try:
            return self._read_line()
        except EOFError:
            return None
        except KeyboardInterrupt:
            # Nothing is being answered: a line is given up, and leaving takes a word.
            self._write("\n/quit or Ctrl-D leaves\n")
            return ""

    def _answer(self, question: str) -> None:
        asked = (*self.turns, ChatTurn(role="user", content=question))
        pieces: list[str] = []
        try:
            with closing(self._ask(asked)) as deltas:
                for delta in deltas:
                    pieces.append(delta.text)
                    self._write(delta.text)
        except KeyboardInterrupt:
            self._write(" [stopped]")
        except ContextLengthExceeded as error:
            self._write(f"error: {error}; /reset begins a new conversation\n")
            return
        except ServiceError as error:
            # The question is not part of the conversation, so it can be asked again.
            self._write(f"error: {error}\n")
            return
        self._write("\n")
        self.turns = (*asked, ChatTurn(role="assistant", content="".join(pieces)))
