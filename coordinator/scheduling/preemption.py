"""Who gives way when the blocks run out."""

from coordinator.scheduling.sequence import Sequence


def last_in_rank(running: dict[int, Sequence]) -> Sequence:
    """The running sequence with the largest rank: the youngest of the least urgent ones.

    `running` is in order of rank. The first is chosen only when it is alone, and alone it always
    finds blocks, so it always progresses and no two sequences can preempt each other for ever.
    """
    return next(reversed(running.values()))
