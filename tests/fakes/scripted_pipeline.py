"""Scripted workers of one pipeline, joined by what they hand on."""

import asyncio
from collections.abc import Awaitable, Callable

from tests.fakes.scripted_worker import ScriptedWorker
from tests.fakes.stage_handoff import StageHandoff


def scripted_pipeline(
    num_stages: int,
    *,
    step_seconds: float = 0.0,
    vocab_size: int = 256,
    poison_token_id: int | None = None,
    is_checking: bool = True,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> list[ScriptedWorker]:
    """Workers of one pipeline in stage order, joined by one handoff."""
    handoff = StageHandoff()
    return [
        ScriptedWorker(
            handoff=handoff,
            vocab_size=vocab_size,
            step_seconds=step_seconds,
            sleep=sleep,
            poison_token_id=poison_token_id,
            is_checking=is_checking,
            address=f"scripted:{stage}",
        )
        for stage in range(num_stages)
    ]
