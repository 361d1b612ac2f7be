"""Draft models over the rows of a test."""

from dataclasses import replace
from pathlib import Path

import torch

from common.speculation import DRAFT_MODEL, SpeculationConfig
from tests.fakes.byte_tokenizer import VOCAB_SIZE
from tests.fakes.drafted_rows import DraftedRows
from tests.fakes.worker_setup import load_request
from worker_service.drafting.draft_model import DraftModel
from worker_service.runner.load_draft import load_draft_model


def make_draft_model(
    folder: Path,
    rows: DraftedRows,
    *,
    vocab_size: int = VOCAB_SIZE,
    most_drafts: int = 5,
    num_blocks: int = 64,
    **limits: int,
) -> DraftModel:
    """A draft model with a cache, in float32; limits replace those of a step."""
    request = replace(
        load_request("target", **limits),
        speculation=SpeculationConfig(
            speculative_method=DRAFT_MODEL,
            num_speculative_tokens=most_drafts,
            draft_model=str(folder),
        ),
    )
    drafter = load_draft_model(
        request,
        vocab_size=vocab_size,
        states=rows.states,
        sampling=rows.sampling,
        device=torch.device("cpu"),
    )
    drafter.initialize_kv_cache(num_blocks)
    return drafter
