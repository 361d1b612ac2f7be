"""The commands that talk to a running server: `generate`, `chat`, `status` and `probe`.

They import their clients when they run, since a probe must not pay for anything but a probe.
"""

import signal
import sys
import threading
import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from common.errors import DeadlineExceeded, ServiceError, Unavailable, WorkerLost

if TYPE_CHECKING:
    from types import FrameType

    from coordinator.engine.generation import ChatTurn, TextDelta
    from coordinator.probe import Probe

ADDRESS = "127.0.0.1:50050"
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
TLS_NAMES = ("ca_cert", "client_cert", "client_key", "server_name")


QUESTION_OPTIONS = (
    click.option("--address", default=ADDRESS, show_default=True, help="HOST:PORT of gRPC."),
    click.option("--model", default="", help="Model's name  [default: the only one served]"),
    click.option("--system", help="What the model is told before the conversation."),
    click.option(
        "--max-tokens", type=click.IntRange(1, 2**31 - 1), help="Most tokens to generate."
    ),
    click.option("--temperature", type=float, help="Softmax temperature; 0 is greedy."),
    click.option(
        "--top-k", type=click.IntRange(0, 2**31 - 1), help="Keep so many most likely tokens."
    ),
    click.option("--top-p", type=float, help="Nucleus mass in (0, 1]."),
    click.option("--min-p", type=float, help="Relative probability floor in [0, 1]."),
    click.option(
        "--repetition-penalty", type=float, help="Over 1: tokens seen before become less likely."
    ),
    click.option(
        "--frequency-penalty", type=float, help="For each time a token was written, in [-2, 2]."
    ),
    click.option("--presence-penalty", type=float, help="For tokens written at all, in [-2, 2]."),
    click.option("--min-tokens", type=click.IntRange(0, 2**31 - 1), help="No end before so many."),
    click.option("--seed", type=click.IntRange(0, 2**64 - 1), help="Same seed, same tokens."),
)
"""Where to ask, and how answers are drawn."""


def _question_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(QUESTION_OPTIONS):
        command = option(command)
    return command


@click.command()
@click.argument("prompt", required=False)
@click.option("--prompt", "prompt_option", help="The prompt, instead of the argument.")
@click.option(
    "--chat/--no-chat",
    default=True,
    show_default=True,
    help="Ask as a user in a conversation, or continue the text as it is.",
)
@_question_options
@click.option("--stop", multiple=True, help="Text that ends the answer; may be repeated.")
@click.option("--bad-word", "bad_words", multiple=True, help="Text never written; may be repeated.")
@click.option(
    "--json-schema",
    type=click.File(encoding="utf-8"),
    help="File with a JSON schema that the answer is valid for.",
)
@click.option("--regex", help="Regular expression that the answer matches as a whole.")
@click.option("--choice", multiple=True, help="The answer is one of these; to be repeated.")
@click.option("--ignore-eos", is_flag=True, help="Go on after the end-of-sequence token.")
@click.option("--stats", is_flag=True, help="Print counts and times even when not on a terminal.")
def generate(prompt: str | None, prompt_option: str | None, **options: Any) -> None:
    """Ask a running coordinator and print the answer as it comes.

    Without a prompt, standard input is the prompt. On a terminal, token counts and times follow on
    stderr.

    \b
    Examples:
      stepwire generate "What is the capital of France?"
      stepwire generate --no-chat --max-tokens 20 --temperature 0 "Once upon a time"
      stepwire generate --address 10.0.0.1:50050 --stats < question.txt
    """
    if prompt is not None and prompt_option is not None:
        raise click.UsageError("The prompt is given twice.")
    text = prompt if prompt is not None else prompt_option
    if text is None and sys.stdin.isatty():
        raise click.UsageError("There is nothing to ask: give a PROMPT, or pipe one in.")
    question = sys.stdin.read() if text is None else text
    if not question.strip():
        raise click.UsageError("The prompt is empty.")
    from coordinator.answer import ask

    show_stats = options.pop("stats") or sys.stderr.isatty()
    turns = _conversation(question, options.pop("system")) if options.pop("chat") else question
    address = options.pop("address")
    if (schema := options.pop("json_schema")) is not None:
        options["json_schema"] = schema.read()
    if not options["choice"]:
        del options["choice"]
    given: Any = {name: value for name, value in options.items() if value is not None}
    with _hint_where_nobody_serves(address):
        stats = ask(turns, given, address=address, write=_write)
    click.echo()
    if show_stats:
        click.echo(str(stats), err=True)


@click.command()
@_question_options
def chat(*, address: str, system: str | None, **options: Any) -> None:
    """Talk with a model: every question carries the conversation so far.

    Ctrl-C stops an answer, /reset begins anew, /quit or Ctrl-D leaves.

    \b
    Examples:
      stepwire chat
      stepwire chat --system "Answer in one sentence." --temperature 0
      stepwire chat --address 10.0.0.1:50050 < questions.txt
    """
    from coordinator.chat_session import ChatSession
    from coordinator.client import Client

    given: Any = {name: value for name, value in options.items() if value is not None}
    is_terminal = sys.stdin.isatty()
    with Client(address) as client:
        with _hint_where_nobody_serves(address):
            (served, *_) = client.list_models()
        if is_terminal:
            click.echo(f"{served.name} listens; /help lists commands, /quit leaves")

        def ask(turns: "tuple[ChatTurn, ...]") -> "Generator[TextDelta]":
            request_id = uuid.uuid4().hex
            deltas = client.generate(turns, request_id=request_id, **given)
            return _stoppable(deltas, stop=lambda: client.abort(request_id))

        ChatSession(
            ask=ask,
            read_line=_typed_line if is_terminal else _piped_line,
            write=_write,
            system=system,
        ).run()


def _stoppable(
    deltas: "Generator[TextDelta]", *, stop: Callable[[], None]
) -> "Generator[TextDelta]":
    """The deltas; Ctrl-C stops the answer and raises KeyboardInterrupt once no library code runs.

    Raised within gRPC it may leave a lock taken, and every later call waits for that. A second Ctrl-C
    is not held back.
    """
    is_stopped = threading.Event()

    def note(number: int, frame: "FrameType | None") -> None:
        if is_stopped.is_set():
            signal.default_int_handler(number, frame)
        is_stopped.set()
        threading.Thread(target=_try, args=(stop,), daemon=True).start()

    former = signal.signal(signal.SIGINT, note)
    try:
        with closing(deltas):
            for delta in deltas:
                if is_stopped.is_set():
                    break
                yield delta
    finally:
        signal.signal(signal.SIGINT, former)
    if is_stopped.is_set():
        raise KeyboardInterrupt


def _try(call: Callable[[], None]) -> None:
    """Call for an effect that may have come about already."""
    with suppress(ServiceError):
        call()


@click.command()
@click.option("--address", default=ADDRESS, show_default=True, help="HOST:PORT of gRPC.")
@click.option("--json", "is_json", is_flag=True, help="Print one JSON object.")
def status(address: str, *, is_json: bool) -> None:
    """Tell what a coordinator does: its workers, what it waits for, what it lost and why.

    \b
    Examples:
      stepwire status
      stepwire status --address 10.0.0.1:50050 --json
    """
    from coordinator.client import Client
    from coordinator.status_report import status_json, status_lines

    try:
        with Client(address) as client:
            state = client.status()
    except Unavailable as error:
        raise Unavailable(f"{address}: {error}; is a coordinator (stepwire up) there?") from error
    except DeadlineExceeded as error:
        raise DeadlineExceeded(
            f"{address} is silent; is a coordinator (stepwire up) there, and not stopped?"
        ) from error
    click.echo(status_json(state) if is_json else "\n".join(status_lines(state)))


def _conversation(question: str, system: str | None) -> "tuple[ChatTurn, ...]":
    from coordinator.engine.generation import ChatTurn

    turns = (ChatTurn(role="user", content=question),)
    return turns if system is None else (ChatTurn(role="system", content=system), *turns)


def _probe_option(name: str, **attributes: Any) -> Callable[[Any], Any]:
    """An option in both spellings, `-name` as grpc_health_probe has it and `--name`."""
    return click.option(f"-{name}", f"--{name}", **attributes)


def _probe_flag(name: str, help_text: str) -> Callable[[Any], Any]:
    """A switch, which may also be written `-name=false` or `-name=true`."""
    return _probe_option(
        name, is_flag=False, flag_value=True, type=bool, default=False, help=help_text
    )


@click.command()
@_probe_option("addr", required=True, metavar="HOST:PORT", help="Where the server listens.")
@_probe_option("service", default="", help="Health name to ask for  [default: the process]")
@_probe_option("connect-timeout", default="1s", show_default=True, help="For connecting.")
@_probe_option("rpc-timeout", default="1s", show_default=True, help="For the answer.")
@_probe_option("user-agent", default="stepwire-probe", show_default=True, help="Name sent along.")
@_probe_option("rpc-header", multiple=True, metavar="NAME:VALUE", help="Metadata; may be repeated.")
@_probe_flag("gzip", "Compress messages.")
@_probe_flag("tls", "Connect with TLS.")
@_probe_option("tls-ca-cert", type=FILE, help="Authorities to trust  [default: the system's]")
@_probe_option("tls-client-cert", type=FILE, help="Certificate to show the server.")
@_probe_option("tls-client-key", type=FILE, help="Its private key.")
@_probe_option("tls-server-name", help="Name to verify instead of the address's.")
@_probe_flag("v", "Accepted for compatibility.")
def probe(**options: Any) -> int:
    """Check a server's health over grpc.health.v1, like grpc_health_probe.

    \b
    Exit codes: 0 serving, 1 wrong arguments, 2 no connection, 3 call failed, 4 not serving.

    \b
    Examples:
      stepwire probe -addr 127.0.0.1:50050 -service stepwire.v1.Inference
      stepwire probe --addr 127.0.0.1:50061 --service stepwire.v1.Worker --rpc-timeout 500ms
    """
    from coordinator.probe import ProbeExit, check_health

    exit_code, message = check_health(_probe_request(**options))
    click.echo(message if exit_code is ProbeExit.SERVING else f"error: {message}", err=True)
    return exit_code


def _probe_request(**options: Any) -> "Probe":
    from coordinator.probe import Probe, Tls, parse_duration, parse_header

    tls = Tls(**{name: options[f"tls_{name}"] for name in TLS_NAMES})
    if tls != Tls() and not options["tls"]:
        raise click.UsageError("The -tls-... options need -tls.")
    try:
        return Probe(
            address=options["addr"],
            service=options["service"],
            connect_timeout=parse_duration(options["connect_timeout"]),
            rpc_timeout=parse_duration(options["rpc_timeout"]),
            user_agent=options["user_agent"],
            headers=tuple(parse_header(header) for header in options["rpc_header"]),
            use_gzip=options["gzip"],
            tls=tls if options["tls"] else None,
        )
    except ValueError as error:
        raise click.UsageError(f"{error}.") from error


def _write(text: str) -> None:
    click.echo(text, nl=False)


@contextmanager
def _hint_where_nobody_serves(address: str) -> Iterator[None]:
    """Name address and remedy where there is no service; a lost worker has a cause of its own."""
    try:
        yield
    except WorkerLost:
        raise
    except Unavailable as error:
        raise Unavailable(f"{address}: {error}; does `stepwire up` serve there?") from error


def _typed_line() -> str:
    """A line typed at a terminal, with editing and the lines before it at hand."""
    import readline  # noqa: F401 - `input` uses it once it is there

    try:
        return input("> ")
    except EOFError:
        # Ctrl-D leaves the cursor behind the prompt.
        click.echo()
        raise


def _piped_line() -> str:
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line
