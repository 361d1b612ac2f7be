"""Real worker processes whose forward passes the test can hold."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.fakes.forward_hold import LAST_STEP, Hold, HoldFile
from tests.fakes.worker_process import WorkerProcess


class HeldWorker(WorkerProcess):
    """A worker process with a file of its own that says which steps are held."""

    def __init__(self, file: Path, *flags: str) -> None:
        self._holds = HoldFile(file)
        super().__init__(str(file), *flags, module="tests.fakes.worker_main")

    def hold(
        self, *, first_step: int = 1, end_step: int = LAST_STEP, seconds: float | None = None
    ) -> None:
        """Make each forward of these steps so much longer; None: until released."""
        self._holds.write(Hold(first_step=first_step, end_step=end_step, seconds=seconds))

    def release(self) -> None:
        """Let the forward that is held return, and hold no other."""
        self._holds.write(None)


@contextmanager
def held_workers(count: int, folder: Path, *flags: str) -> Iterator[list[HeldWorker]]:
    """So many workers, started side by side; killed in the end, whatever happens."""
    workers = [HeldWorker(folder / f"hold-{index}.json", *flags) for index in range(count)]
    try:
        for worker in workers:
            worker.wait_until_ready()
        yield workers
    finally:
        for worker in workers:
            worker.kill()
