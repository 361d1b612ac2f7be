"""A call that brings nothing for minutes outlives the pings that a gateway sends meanwhile.

`smg` pings every 30 s; a gRPC server with default options takes that amiss after some 140 s of
silence and closes the connection.
"""

import time
from pathlib import Path

import pytest
from openai import OpenAI

from tests.fakes.coordinator_process import TINY_LIMITS, coordinator_process
from tests.fakes.held_worker import held_workers
from tests.fakes.smg_gateway import smg_gateway
from tests.fakes.tiny_checkpoint import write_tiny_llama

QUIET = (
    "--disable-health-check",
    "--disable-load-monitoring",
    "--disable-worker-overload-protection",
)
"""Answers to other calls on the connection would excuse the pings."""

SILENT_SECONDS = 200.0
STEP_SECONDS = 0.25
NUM_TOKENS = round(SILENT_SECONDS / STEP_SECONDS)


@pytest.mark.soak
@pytest.mark.timeout(2 * SILENT_SECONDS)
def test_a_silent_call_survives(tmp_path: Path):
    """An answer in one piece that takes 200 s on two slow stages arrives whole through the gateway."""
    model = write_tiny_llama(tmp_path / "tiny", num_layers=2)
    with held_workers(2, tmp_path) as workers:
        addresses = ",".join(worker.address for worker in workers)
        arguments = f"--workers={addresses}", f"--model={model}", *TINY_LIMITS
        with (
            coordinator_process("coordinator", *arguments) as coordinator,
            smg_gateway(coordinator.grpc_address, *QUIET, log=tmp_path / "smg.log") as url,
            OpenAI(
                base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=2 * SILENT_SECONDS
            ) as client,
        ):
            before = coordinator.client.status()
            workers[0].hold(seconds=STEP_SECONDS)
            started = time.monotonic()
            answer = client.completions.create(
                model="tiny",
                prompt="hello",
                max_tokens=NUM_TOKENS,
                extra_body={"ignore_eos": True},
            )
            assert time.monotonic() - started >= SILENT_SECONDS
            assert answer.usage.completion_tokens == NUM_TOKENS
            after = coordinator.client.status()
            # A gateway that lost its call would begin anew.
            assert after.num_generated_tokens - before.num_generated_tokens == NUM_TOKENS
            assert after.generation == before.generation
