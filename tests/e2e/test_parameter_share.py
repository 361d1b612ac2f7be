"""What each pipeline stage of the real model reads and holds, as LoadModel reports it."""

from dataclasses import replace
from pathlib import Path

import pytest

from common.channels.channel import InMemoryHub
from common.config import WorkerConfig
from common.worker_api import LoadReport
from tests.fakes.worker_setup import AUTHORITY, load_request
from worker_service.worker import Worker

LARGEST_SHARE = 0.65
NUM_LAYERS = 30
EMBEDDING_PARAMETERS = 49152 * 576
BYTES_PER_PARAMETER = 2
"""In bfloat16, as the file holds them."""


@pytest.mark.model
async def test_a_stage_of_two_reads_and_holds_its_share(smollm2):
    """Each stage has at most 0.65 of the model; the two overlap in the tied head alone."""
    (whole,) = await load_reports(smollm2, num_stages=1)
    first, last = await load_reports(smollm2, num_stages=2)
    for stage in (first, last):
        assert stage.parameter_bytes == stage.bytes_read
        assert stage.bytes_read <= LARGEST_SHARE * whole.bytes_read
    head_bytes = EMBEDDING_PARAMETERS * BYTES_PER_PARAMETER
    assert first.bytes_read + last.bytes_read == whole.bytes_read + head_bytes
    # Native kernels keep a tied table twice: in rows for look-up, and packed as the head.
    assert whole.parameter_bytes - whole.bytes_read in (0, head_bytes)
    assert first.tensors_read + last.tensors_read == whole.tensors_read + 1


async def load_reports(model: Path, *, num_stages: int) -> list[LoadReport]:
    """The report of each stage, its worker closed again."""
    hub = InMemoryHub()
    workers = [
        Worker(WorkerConfig(device="cpu", threads=1), hub.channels(f"stage {stage}"))
        for stage in range(num_stages)
    ]
    reports: list[LoadReport] = []
    try:
        for stage, worker in enumerate(workers):
            request = load_request(
                str(model), stage=stage, num_stages=num_stages, num_layers=NUM_LAYERS
            )
            await worker.init_device(AUTHORITY)
            reports.append(await worker.load_model(AUTHORITY, replace(request, dtype="bfloat16")))
    finally:
        for worker in workers:
            await worker.close()
    return reports
