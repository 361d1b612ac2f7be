"""A worker on the CPU that has graphs, by tapes: `python -m tests.fakes.graph_worker FLAGS` of a worker."""

import sys
from functools import partial

from tests.fakes.tape_recorder import TapeRecorder, without_native_kernels
from worker_service.__main__ import run_worker_command
from worker_service.runner.model_runner import ModelRunner

if __name__ == "__main__":
    with without_native_kernels():
        runner = partial(ModelRunner, make_recorder=TapeRecorder)
        exit_code = run_worker_command(sys.argv[1:], make_runner=runner)
    sys.exit(exit_code)
