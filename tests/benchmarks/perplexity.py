"""What do quantized weights cost in quality? Perplexity of SmolLM2-135M in bf16, int8 and int4.

The text is the reference that every Python installation holds (`pydoc_data.topics`), in windows
without overlap; it is the same for one version of Python, and its digest is reported. The layers of
the bundled checkpoint come out of a 4-bit file in the same groups, so int4 loses less here than it
would on another one: docs/quantization.md.

Run as `python -m tests.benchmarks.perplexity` from the repository's root; takes minutes.
"""

import hashlib
import math
from pathlib import Path
from pydoc_data.topics import topics

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from common.config import QUANTIZATIONS
from common.config_loader import cache_folder
from common.model_folder import resolve_model
from common.worker_api import Layout, LoadModel, Rank
from tests.benchmarks.report import Row, report
from tests.fakes.paged_steps import Row as StepRow
from tests.fakes.paged_steps import row_positions, small_cache, step_metadata
from worker_service.attention.backend import Attend
from worker_service.attention.select import select_backend
from worker_service.models.model_spec import read_model_spec
from worker_service.runner.load_stage import LoadedStage, load_stage

# T tokens of a window, V vocabulary

DTYPE = torch.bfloat16
CPU = torch.device("cpu")
WINDOW, NUM_WINDOWS = 1024, 24
BLOCK_SIZE = 16
LOGIT_ROWS = 256
"""Whose logits are in memory together."""


def main() -> None:
    """Measure one form of the weights after the other."""
    torch.set_num_threads(2)
    folder = resolve_model("smollm2-135m", cache=cache_folder())
    text = "\n\n".join(topics[name] for name in sorted(topics))
    ids = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids
    windows = torch.tensor(ids[: WINDOW * NUM_WINDOWS]).view(NUM_WINDOWS, WINDOW)
    losses = {form: _losses(folder, form, windows) for form in QUANTIZATIONS}
    base = losses["none"].loss
    rows: list[Row] = [
        {
            "weights": "bf16" if form == "none" else form,
            "perplexity": f"{math.exp(found.loss.mean()):.3f}",
            "÷ bf16": f"{math.exp((found.loss - base).mean()):.4f}",
            "± (95%)": f"{1.96 * float((found.loss - base).std()) / len(base) ** 0.5:.4f}",
            "MB held": found.parameter_bytes / 1e6,
            "tokens": len(base),
            "sha256 of the text": hashlib.sha256(text.encode()).hexdigest()[:12],
        }
        for form, found in losses.items()
    ]
    report(f"perplexity of {windows.numel()} tokens in windows of {WINDOW}, SmolLM2-135M", rows)


class _Found:
    def __init__(self, loss: Tensor, parameter_bytes: int) -> None:
        self.loss, self.parameter_bytes = loss, parameter_bytes


@torch.inference_mode()
def _losses(folder: Path, form: str, windows: Tensor) -> _Found:
    """Negative log-likelihood of every token but the first of each window."""
    spec = read_model_spec(folder)
    request = LoadModel(
        model=str(folder),
        dtype="bfloat16",
        rank=Rank(),
        layout=Layout(),
        first_layer=0,
        end_layer=spec.num_layers,
        max_model_len=WINDOW,
        max_num_batched_tokens=WINDOW,
        max_num_seqs=1,
        block_size=BLOCK_SIZE,
        quantization=form,
    )
    stage = load_stage(folder, request, device=CPU)
    losses = [_window_loss(stage, window_T) for window_T in windows]
    return _Found(torch.cat(losses), stage.loaded.parameter_bytes)


def _window_loss(stage: LoadedStage, window_T: Tensor) -> Tensor:
    spec, num_blocks = stage.spec, WINDOW // BLOCK_SIZE + 1
    backend = select_backend("auto", device=CPU, dtype=DTYPE, head_size=spec.head_size)
    row = StepRow(blocks=list(range(1, num_blocks)), num_cached=0, num_tokens=len(window_T))
    cache = small_cache(
        num_layers=spec.num_layers,
        num_kv_heads=spec.num_kv_heads,
        head_size=spec.head_size,
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        dtype=DTYPE,
    )
    attend = Attend(backend, cache, step_metadata([row], block_size=BLOCK_SIZE))
    hidden_TD = stage.model(stage.model.embed(window_T), row_positions([row]), attend)
    parts = zip(hidden_TD[:-1].split(LOGIT_ROWS), window_T[1:].split(LOGIT_ROWS), strict=True)
    return torch.cat(
        [
            functional.cross_entropy(stage.model.compute_logits(part_TD), ids_T, reduction="none")
            for part_TD, ids_T in parts
        ]
    )


if __name__ == "__main__":
    main()
