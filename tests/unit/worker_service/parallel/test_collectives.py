"""Tensor-parallel ranks as threads of one process, over gloo."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed import HashStore, ProcessGroupGloo

from tests.fakes.paged_steps import Row, row_positions, small_cache, step_metadata
from tests.fakes.tiny_checkpoint import write_tiny_llama
from worker_service.attention.backend import Attend
from worker_service.attention.torch_backend import TorchBackend
from worker_service.models.loading import load_model
from worker_service.models.model_spec import read_model_spec
from worker_service.parallel.collectives import all_gather, all_reduce
from worker_service.parallel.groups import Ranks

torch.set_num_threads(1)


def run_ranks(size: int, call: Callable[[Ranks], Tensor]) -> list[Tensor]:
    """The results of call on every rank of a group, run at once."""
    store = HashStore()

    def run(index: int) -> Tensor:
        group = ProcessGroupGloo(store, index, size, timedelta(seconds=10))
        with torch.inference_mode():
            return call(Ranks(size=size, index=index, group=group))

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(run, range(size)))


def test_one_rank_keeps_its_tensor() -> None:
    """Without a group, sums and gathers return their input itself."""
    x = torch.ones(2)
    assert all_reduce(x, Ranks()) is x
    assert all_gather(x, Ranks()) is x


def test_sum_and_gather() -> None:
    """Every rank gets the sum, and the parts joined in rank order."""
    sums = run_ranks(3, lambda ranks: all_reduce(torch.full((2,), ranks.index + 1.0), ranks))
    assert all(torch.equal(x, torch.full((2,), 6.0)) for x in sums)
    joined = run_ranks(3, lambda ranks: all_gather(torch.full((1, 1), float(ranks.index)), ranks))
    assert all(x.tolist() == [[0.0, 1.0, 2.0]] for x in joined)


def test_ranks_compute_what_one_does(tmp_path: Path) -> None:
    """Logits of a model split over 1, 2 and 4 ranks agree, biases and odd vocabularies included."""
    folder = write_tiny_llama(tmp_path, num_layers=2, bias=True, tied=False, vocab=261)
    spec = read_model_spec(folder)
    row = Row(blocks=[1, 2, 3], num_cached=0, num_tokens=9)
    metadata = step_metadata([row], block_size=4)

    def logits(ranks: Ranks) -> Tensor:
        model = load_model(
            folder,
            spec=spec,
            layers=range(2),
            is_first=True,
            is_last=True,
            ranks=ranks,
            dtype=torch.float32,
            device=torch.device("cpu"),
        ).model
        cache = small_cache(
            num_layers=2,
            num_kv_heads=len(ranks.span(spec.num_kv_heads)),
            head_size=spec.head_size,
            num_blocks=4,
            block_size=4,
        )
        hidden_TD = model.embed(torch.arange(252, 261))
        attend = Attend(TorchBackend(), cache, metadata)
        return model.compute_logits(model(hidden_TD, row_positions([row]), attend))

    expected = logits(Ranks())
    assert expected.shape == (9, 261)
    for size in (2, 4):
        for actual in run_ranks(size, logits):
            torch.testing.assert_close(actual, expected, rtol=0, atol=1e-4)
