"""`stepwire chat` as a process, in front of a coordinator with a tiny model."""

import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.fakes.running_coordinator import RunningCoordinator, running_coordinator
from tests.fakes.tiny_checkpoint import write_tiny_llama

STEPWIRE = Path(sys.executable).with_name("stepwire")


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[RunningCoordinator]:
    """A coordinator with its worker inside; an answer without an end lasts for many seconds."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    model = write_tiny_llama(folder, num_layers=2, max_position_embeddings=1 << 15)
    flags = {"model": str(model), "executor": "uniproc", "kv_cache_bytes": 32 << 20}
    with running_coordinator(flags | {"max_num_batched_tokens": 256}) as running:
        yield running


@contextmanager
def chatting(server: RunningCoordinator, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """The command with its input and output as pipes; killed if it does not end itself."""
    command = [STEPWIRE, "chat", "--address", server.grpc_address, "--temperature=0", *options]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def said(server: RunningCoordinator, lines: Sequence[str]) -> tuple[int, str]:
    """Exit code and output of a conversation of these lines."""
    with chatting(server, "--max-tokens=4") as process:
        output, _ = process.communicate("\n".join(lines).encode(), timeout=60)
    return process.returncode, output.decode()


def test_the_conversation_is_kept_until_it_is_reset(server):
    """The second question is computed after the first and its answer, and after /reset alone."""
    before = server.client.status().num_prompt_tokens
    exit_code, first = said(server, ["hello", "/quit", "never read"])
    alone = server.client.status().num_prompt_tokens - before
    assert (exit_code, first.endswith("\n")) == (0, True)
    _, twice = said(server, ["hello", "hello", "/reset", "hello"])
    counted = server.client.status().num_prompt_tokens - before - alone
    assert twice.startswith(first)
    assert twice.endswith("a new conversation\n" + first)
    assert counted > 3 * alone


def test_ctrl_c_stops_the_answer_and_not_the_conversation(server):
    """The request is ended at the coordinator, and the next line is read."""
    with chatting(server) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"hello\n")
        process.stdin.flush()
        process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(b"/nothing\n", timeout=60)
    assert process.returncode == 0
    assert b" [stopped]\nthere is no command /nothing" in output
    server.wait_until_idle()


def test_nobody_serves():
    """One line that says where it looked and what to do."""
    command = [STEPWIRE, "chat", "--address", "127.0.0.1:1"]
    ended = subprocess.run(command, input=b"", capture_output=True, check=False, timeout=60)
    assert ended.returncode == 1
    assert ended.stderr.startswith(b"error: 127.0.0.1:1: ")
    assert b"stepwire up" in ended.stderr
