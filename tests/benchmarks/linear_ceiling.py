"""What a decode step cannot go below: its linear layers alone, and the speed at which memory is read."""

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from common.worker_api import Layout, LoadModel, Rank
from worker_service.device import bind, find_device
from worker_service.models.layers.linear import ColumnLinear, RowLinear
from worker_service.models.model_spec import read_model_spec
from worker_service.runner.load_stage import load_stage

REPEATS = 20
LONG_ROWS, LONG_REPEATS = 256, 3
"""So many rows take long enough to be measured a few times only."""
READ_BYTES = 1 << 29


class LinearLayers:
    """The linear layers and the head of a model, run one after the other on rows of noise."""

    def __init__(self, folder: Path, *, num_threads: int, quantization: str = "none") -> None:
        """Load the model as a worker does, in bf16."""
        spec = read_model_spec(folder)
        request = LoadModel(
            model=str(folder),
            dtype="bfloat16",
            rank=Rank(),
            layout=Layout(),
            first_layer=0,
            end_layer=spec.num_layers,
            max_model_len=2048,
            max_num_batched_tokens=2048,
            max_num_seqs=64,
            block_size=16,
            quantization=quantization,
        )
        device = find_device("cpu")
        bind(device, num_threads=num_threads)
        model = load_stage(folder, request, device=device.torch_device).model
        linear = [m for m in model.modules() if isinstance(m, ColumnLinear | RowLinear)]
        self._layers = [(layer, layer.num_inputs) for layer in linear]
        self._head, self._hidden_size = model.head.compute_logits, spec.hidden_size
        self.num_bytes = sum(layer.packed.num_bytes for layer in (*linear, model.head))

    def milliseconds(self, num_rows: int, *, num_sampled: int | None = None) -> float:
        """Median time of one pass through all of them; by default every row goes through the head."""
        inputs = {
            width: torch.randn(num_rows, width, dtype=torch.bfloat16) for _, width in self._layers
        }
        sampled = torch.randn(num_sampled or num_rows, self._hidden_size, dtype=torch.bfloat16)

        def run() -> None:
            for layer, width in self._layers:
                layer(inputs[width])
            self._head(sampled)

        with torch.inference_mode():
            repeats = REPEATS if num_rows < LONG_ROWS else LONG_REPEATS
            return statistics.median(_seconds(run, repeats=repeats)) * 1e3


def read_gigabytes_per_second(*, num_threads: int) -> float:
    """How fast so many threads together read memory, far past the caches; the best of some tries."""
    torch.set_num_threads(num_threads)
    values = torch.ones(READ_BYTES // 4, dtype=torch.float32)
    return READ_BYTES / 1e9 / _least_seconds(lambda: values.sum())


def _least_seconds(run: Callable[[], object]) -> float:
    return min(_seconds(run, repeats=REPEATS))


def _seconds(run: Callable[[], object], *, repeats: int) -> list[float]:
    run()
    found: list[float] = []
    for _ in range(repeats):
        started = time.monotonic()
        run()
        found.append(time.monotonic() - started)
    return found
