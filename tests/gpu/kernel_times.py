"""Kernel times beside torch's and beside the two ceilings, measured in the same run."""

import argparse
from dataclasses import replace

import torch

from tests.gpu.kernel_cases import FULL, TINY, KernelCases
from tests.gpu.rows import TableRow, emit
from tests.gpu.stopwatch import measure_ceilings, median_seconds, stopwatch
from worker_service.kernels.logit_edits import Penalties, Tokens, penalize

PART = "kernel times"


def main() -> None:
    """Ceilings first, then a row a kernel; one that fails is a row too."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rehearse", action="store_true")
    options = parser.parse_args()
    device = torch.device(options.device)
    watch, rounds = stopwatch(device), 1 if options.rehearse else 20
    sizes = TINY if options.rehearse else FULL
    ceilings = measure_ceilings(
        device,
        watch=watch,
        copy_bytes=1 << 20 if options.rehearse else 4 << 30,
        matmul_size=64 if options.rehearse else 8192,
        rounds=rounds,
    )
    figures = {
        "GB/s": ceilings.bytes_per_second / 1e9,
        "TFLOP/s": ceilings.flops_per_second / 1e12,
    }
    emit(TableRow(part=PART, what="ceilings: copy, bf16 matmul", figures=figures))
    warm_ups = 1 if options.rehearse else 3
    for case in KernelCases(sizes, device=device, dtype=torch.bfloat16):
        row = TableRow(part=PART, what=f"{case.name}, bf16")
        try:
            mine, theirs = (
                median_seconds(work, watch=watch, rounds=rounds, warm_ups=warm_ups)
                for work in (case.by_kernel, case.by_torch)
            )
        except Exception as error:  # noqa: BLE001 - the other kernels are measured nevertheless
            emit(replace(row, result=f"failed: {error!r}"[:200]))
            continue
        share = ceilings.share(mine, num_bytes=case.num_bytes, flops=case.flops)
        ours = {"ms": mine * 1e3, "torch ms": theirs * 1e3, "share of ceiling": share}
        emit(replace(row, figures=ours))
    rows, vocabulary = sizes.rows, sizes.vocabulary
    logits = torch.randn(rows, vocabulary, device=device)
    edit_s = median_seconds(lambda: _penalize(logits), watch=watch, rounds=rounds)
    share = ceilings.share(edit_s, num_bytes=2 * logits.nbytes, flops=0)
    edits = {"ms": edit_s * 1e3, "share of ceiling": share}
    emit(TableRow(part=PART, what="logit edits: penalties, in torch", figures=edits))


def _penalize(logits: torch.Tensor) -> None:
    rows = torch.arange(len(logits), device=logits.device)
    ones = torch.ones(len(rows), device=logits.device)
    penalties = Penalties(rows_R=rows, repetition_R=ones, frequency_R=ones, presence_R=ones)
    seen = Tokens(rows=rows, token_ids=rows)
    penalize(logits, penalties, prompt=seen, output=seen)


if __name__ == "__main__":
    main()
