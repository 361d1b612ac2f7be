"""A worker whose forward passes a test can hold: `python -m tests.fakes.worker_main FILE FLAGS`.

FILE is read at each step, see `forward_hold`; FLAGS are those of a worker. All else is the worker.
"""

import sys
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

from torch import Tensor

from common.step import ModelRunnerOutput, SchedulerOutput
from tests.fakes.forward_hold import Hold, HoldFile
from worker_service.__main__ import run_worker_command
from worker_service.runner.model_runner import ModelRunner
from worker_service.runner.preprocess import StageInputs

LOOK_SECONDS = 0.02


class HeldRunner(ModelRunner):
    """Blocks its thread at the end of a forward pass, as a kernel that does not return would."""

    def __init__(self, *, holds: HoldFile, **made_of: Any) -> None:
        super().__init__(**made_of)
        self._holds = holds

    def execute_model(
        self, output: SchedulerOutput, inputs: StageInputs
    ) -> dict[str, Tensor] | ModelRunnerOutput | None:
        """Run the execute phase, then block for as long as the test wants."""
        result = super().execute_model(output, inputs)
        is_made_up = output.step_id.epoch == 0
        if not is_made_up and (hold := self._holds.read(output.step_id.step)):
            self._block(hold, output.step_id.step)
        return result

    def _block(self, hold: Hold, step: int) -> None:
        never = Event()
        if hold.seconds is not None:
            never.wait(hold.seconds)
            return
        while self._holds.read(step) == hold:
            never.wait(LOOK_SECONDS)


if __name__ == "__main__":
    file, *flags = sys.argv[1:]
    sys.exit(run_worker_command(flags, make_runner=partial(HeldRunner, holds=HoldFile(Path(file)))))
