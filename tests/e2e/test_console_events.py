"""The events of the console, from a real coordinator."""

import json
import signal
import time
from collections.abc import Iterator

import httpx

from tests.fakes.running_coordinator import running_coordinator
from tests.fakes.tiny_checkpoint import write_tiny_llama

ENDS_WITHIN_S = 10.0


def states(response: httpx.Response) -> Iterator[dict]:
    """The objects in the events of a response, as they come."""
    for line in response.iter_lines():
        if line:
            yield json.loads(line.removeprefix("data: "))


def test_load_is_told_while_it_lasts_and_open_consoles_do_not_hold_up_the_end(tmp_path):
    """Tokens of a request appear as a rate; SIGTERM ends the events, and the coordinator with 0."""
    model = write_tiny_llama(tmp_path / "tiny", num_layers=2)
    flags = {"model": str(model), "executor": "uniproc", "max_num_seqs": 2}
    flags |= {"max_num_batched_tokens": 256, "kv_cache_bytes": 4 << 20}
    with (
        running_coordinator(flags) as running,
        httpx.stream("GET", f"{running.http_url}/console/events") as response,
    ):
        assert response.headers["content-type"].startswith("text/event-stream")
        told = states(response)
        first = next(told)
        assert first["history"][-1] == first["load"]
        assert first["status"]["is_serving"]
        assert first["status"]["workers"][0]["end_layer"] == 2

        running.client.complete("hello", max_tokens=50, ignore_eos=True)
        rates = next(state["load"] for state in told if state["load"]["generated_rate"] > 0)
        # A sample may fall into the request: then its tokens are spread over two.
        assert 0 < rates["generated_rate"] <= 51

        asked_at = time.monotonic()
        running.process.send_signal(signal.SIGTERM)
        assert all("history" not in state for state in told)
        assert running.process.wait(ENDS_WITHIN_S) == 0
        assert time.monotonic() - asked_at < ENDS_WITHIN_S
