"""Who gives way when the blocks run out."""

from coordinator.scheduling.sequence import Sequence


def youngest(running: dict[int, Sequence]) -> Sequence:
    """The running sequence that came last, for first come, first served.

    `running` is in order of arrival. The oldest is chosen only when it is alone, and alone it
    always finds blocks, so it always progresses and no two sequences can preempt each other for ever.
    """
    return next(reversed(running.values()))
