"""A worker whose tokens say when their step ended: `python -m tests.fakes.stamping_worker SECONDS FLAGS`.

SECONDS is what a step takes, FLAGS are those of a worker. Nothing is computed: every row that has
all its tokens gets the stamp. All else is the worker, so that a coordinator can be measured alone.
"""

import json
import sys
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from common.step import (
    GrammarMask,
    ModelRunnerOutput,
    Phase,
    Ragged,
    SchedulerOutput,
    StepId,
    StepKey,
)
from tests.fakes.scripted_runner import ScriptedRunner
from worker_service.__main__ import run_worker_command
from worker_service.runner.preprocess import StageInputs

NUM_STAMPS = 100_000
STAMPS_A_SECOND = 10_000
DIGITS = 5
"""The text of token n is n with so many digits."""


def stamp(seconds: float) -> int:
    """The token that tells this time of the machine's monotonic clock, repeated every 10 seconds."""
    return int(seconds * STAMPS_A_SECOND) % NUM_STAMPS


def seconds_since(stamps: "np.ndarray", seconds: "np.ndarray") -> "np.ndarray":
    """Age of stamps at these times, less than 10 seconds."""
    return (seconds * STAMPS_A_SECOND - stamps) % NUM_STAMPS / STAMPS_A_SECOND


def write_stamping_model(folder: Path) -> None:
    """Write what a coordinator reads of a model with this vocabulary; there are no weights."""
    vocab = {f"{token:0{DIGITS}}": token for token in range(NUM_STAMPS)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "vocab_size": NUM_STAMPS,
        "num_hidden_layers": 1,
        "max_position_embeddings": 8192,
        "dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config))


class StampingRunner(ScriptedRunner):
    """Takes a fixed time for a step and draws the stamp of its end for every row."""

    def __init__(self, *, step_seconds: float, **made_of: "object") -> None:
        super().__init__(**made_of)  # pyright: ignore[reportArgumentType] - handed through
        self._step_seconds = step_seconds
        self._never = threading.Event()
        self._executed: SchedulerOutput | None = None

    def execute_model(
        self, output: SchedulerOutput, inputs: StageInputs
    ) -> dict[str, torch.Tensor] | ModelRunnerOutput | None:
        """Let the time of a step pass."""
        if output.num_rows == 0:
            return ModelRunnerOutput(key=StepKey(step_id=output.step_id, phase=Phase.EXECUTE))
        if self._step_seconds:
            self._never.wait(self._step_seconds)
        self._executed = output
        return None

    def sample_tokens(self, step_id: StepId, mask: GrammarMask | None = None) -> ModelRunnerOutput:
        """Draw the time for every row."""
        assert self._executed is not None
        handles = np.array(self._executed.handles, dtype=np.uint64)
        tokens = np.full(len(handles), stamp(time.monotonic()), dtype=np.int32)
        return ModelRunnerOutput(
            key=StepKey(step_id=step_id, phase=Phase.SAMPLE),
            handles=handles,
            sampled_token_ids=Ragged(tokens, np.arange(len(handles) + 1, dtype=np.uint32)),
        )


if __name__ == "__main__":
    seconds, *flags = sys.argv[1:]
    runner = partial(StampingRunner, step_seconds=float(seconds))
    sys.exit(run_worker_command(flags, make_runner=runner))  # pyright: ignore[reportArgumentType]
