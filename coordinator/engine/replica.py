"""One replica from its workers to its loop: brought up in order, ended in the reverse one."""

import logging
from collections.abc import Callable

from common.config import CoordinatorConfig
from common.model_folder import ModelFolder
from coordinator.engine.cluster_status import ClusterStatus
from coordinator.engine.loop import EngineLoop
from coordinator.executors.executor import Executor
from coordinator.executors.launch import launch_workers
from coordinator.scheduling.scheduler import Scheduler

logger = logging.getLogger(__name__)


class Replica:
    """A worker group and the loop that drives it. Made by `start`; `run` serves; then `shutdown`."""

    def __init__(
        self,
        executor: Executor,
        scheduler: Scheduler,
        *,
        num_blocks: int,
        on_serving_changed: Callable[[bool], None],
    ) -> None:
        """Wire the parts; num_blocks counts the null block."""
        self._executor = executor
        self._scheduler = scheduler
        self._num_blocks = num_blocks
        self.loop = EngineLoop(scheduler, executor, on_serving_changed=on_serving_changed)

    @classmethod
    async def start(
        cls,
        config: CoordinatorConfig,
        folder: ModelFolder,
        *,
        on_serving_changed: Callable[[bool], None],
    ) -> "Replica":
        """Obtain the workers and bring them to the point where steps may follow.

        Raises the ServiceError of whatever failed; no worker is held then.
        """
        cluster = config.cluster
        logger.info(
            "obtaining workers",
            extra={"executor": cluster.executor_kind, "stages": cluster.num_stages},
        )
        executor = await Executor.create(await launch_workers(config), config, folder)
        try:
            num_blocks = await executor.determine_available_memory()
            await executor.initialize(num_blocks)
        except BaseException:
            await executor.shutdown()
            raise
        scheduler = Scheduler(
            config.schedule,
            num_stages=executor.num_stages,
            num_blocks=num_blocks,
            block_size=config.cache.block_size,
            max_model_len=executor.max_model_len,
            eos_token_ids=folder.eos_token_ids,
        )
        return cls(
            executor, scheduler, num_blocks=num_blocks, on_serving_changed=on_serving_changed
        )

    @property
    def max_sequence_len(self) -> int:
        """Most tokens of a request, prompt and output."""
        return self._scheduler.max_sequence_len

    @property
    def num_preemptions(self) -> int:
        """How often a sequence lost its blocks to another one."""
        return self._scheduler.num_preemptions

    def status(self, model: str) -> ClusterStatus:
        """What an operator is told of this replica."""
        return ClusterStatus(
            model=model,
            is_serving=self.loop.is_serving,
            epoch=self._executor.authority.epoch,
            generation=self._executor.generation,
            step=self.loop.last_step,
            workers=self._executor.topology(),
            num_waiting=self._scheduler.num_waiting,
            num_running=self._scheduler.num_running,
            num_blocks=self._num_blocks - 1,
            num_free_blocks=self._scheduler.num_free_blocks,
        )

    async def shutdown(self) -> None:
        """Release the workers and let go of them; the loop has ended or ends with them."""
        await self._executor.shutdown()
