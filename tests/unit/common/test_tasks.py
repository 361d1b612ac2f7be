"""Background tasks live and fail together."""

import asyncio

import pytest

from common.tasks import TaskSupervisor


async def forever() -> None:
    """Never return."""
    await asyncio.Event().wait()


async def crash() -> None:
    """Fail at once."""
    raise ValueError("boom")


async def test_crash_ends_the_block_and_the_others():
    """The error of one task cancels the block and its siblings, and is raised with the task's name."""
    started: list[asyncio.Task[None]] = []

    async def serve() -> None:
        async with TaskSupervisor() as tasks:
            started.append(tasks.start("sibling", forever()))
            tasks.start("crasher", crash())
            await forever()

    with pytest.raises(ValueError, match="boom") as caught:
        await serve()
    assert started[0].cancelled()
    assert caught.value.__notes__ == ["raised by the background task 'crasher'"]


async def test_leaving_cancels_what_runs():
    """Leaving the block cancels running tasks, also those that never got to run, and waits for them."""
    async with TaskSupervisor() as tasks:
        started = tasks.start("started", forever())
        await asyncio.sleep(0)
        unstarted = tasks.start("unstarted", forever())
    assert started.cancelled()
    assert unstarted.cancelled()


async def test_early_return_is_no_crash():
    """A task that returns leaves the others alone."""
    async with TaskSupervisor() as tasks:
        other = tasks.start("other", forever())
        await tasks.start("short", asyncio.sleep(0))
        await asyncio.sleep(0)
        assert not other.done()


async def test_error_of_the_block_wins():
    """An error of the block itself is raised as it is, after the tasks have ended."""
    started: list[asyncio.Task[None]] = []

    async def serve() -> None:
        async with TaskSupervisor() as tasks:
            started.append(tasks.start("running", forever()))
            raise KeyError("block")

    with pytest.raises(KeyError):
        await serve()
    assert started[0].cancelled()


async def test_several_crashes_are_a_group():
    """Errors of several tasks are raised together."""

    async def crash_when_cancelled() -> None:
        try:
            await forever()
        finally:
            raise KeyError("second")

    async def serve() -> None:
        async with TaskSupervisor() as tasks:
            tasks.start("second", crash_when_cancelled())
            await asyncio.sleep(0)
            tasks.start("first", crash())
            await forever()

    with pytest.raises(ExceptionGroup) as caught:
        await serve()
    assert {type(error) for error in caught.value.exceptions} == {ValueError, KeyError}


async def test_tasks_are_named():
    """A task carries its name, as debuggers and leak checks show it."""
    async with TaskSupervisor() as tasks:
        assert tasks.start("engine loop", forever()).get_name() == "engine loop"
