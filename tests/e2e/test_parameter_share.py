"""What each pipeline stage of the real model reads and holds, as LoadModel reports it."""

from pathlib import Path

import pytest

from common.channels.channel import InMemoryHub
from common.config import WorkerConfig
from common.worker_api import LoadReport
from tests.fakes.pipeline_driver import AUTHORITY, PipelineDriver
from worker_service.worker import Worker

LARGEST_SHARE = 0.65
NUM_LAYERS = 30
EMBEDDING_PARAMETERS = 49152 * 576
BYTES_PER_PARAMETER = 4
"""The driver asks for float32; the file holds bfloat16, half as wide."""


@pytest.mark.model
async def test_a_stage_of_two_reads_and_holds_its_share(smollm2):
    """Each stage has at most 0.65 of the model; the two overlap in the tied head alone."""
    (whole,) = await load_reports(smollm2, num_stages=1)
    first, last = await load_reports(smollm2, num_stages=2)
    for stage in (first, last):
        assert stage.parameter_bytes <= LARGEST_SHARE * whole.parameter_bytes
        assert stage.bytes_read <= LARGEST_SHARE * whole.bytes_read
    head_bytes = EMBEDDING_PARAMETERS * BYTES_PER_PARAMETER
    both = first.parameter_bytes + last.parameter_bytes
    assert both == whole.parameter_bytes + head_bytes
    assert first.bytes_read + last.bytes_read == whole.bytes_read + head_bytes // 2
    assert first.tensors_read + last.tensors_read == whole.tensors_read + 1


async def load_reports(model: Path, *, num_stages: int) -> list[LoadReport]:
    """The report of each stage, its worker closed again."""
    hub = InMemoryHub()
    workers = [
        Worker(WorkerConfig(device="cpu", threads=1), hub.channels(f"stage {stage}"))
        for stage in range(num_stages)
    ]
    driver = PipelineDriver(workers, model=str(model), num_layers=NUM_LAYERS)
    reports: list[LoadReport] = []
    try:
        for stage, worker in enumerate(workers):
            await worker.init_device(AUTHORITY)
            reports.append(await worker.load_model(AUTHORITY, driver.load_request(stage)))
    finally:
        for worker in workers:
            await worker.close()
    return reports
