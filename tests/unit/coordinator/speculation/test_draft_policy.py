"""A sequence has as many drafts as it has deserved."""

from coordinator.speculation.draft_policy import (
    FAILURES_BEFORE_PAUSE,
    LONGEST_PAUSE,
    DraftLimit,
)


def limits(limit: DraftLimit, count: int) -> list[int]:
    """What it may have behind its next samples."""
    return [limit.next() for _ in range(count)]


def test_a_sequence_starts_with_the_most():
    """Nothing is known of it, so it is tried."""
    assert limits(DraftLimit(8), 3) == [8, 8, 8]


def test_without_speculation_there_are_none():
    """A sequence that shall have none has none."""
    assert limits(DraftLimit(0), 3) == [0, 0, 0]


def test_rejections_shorten_and_acceptance_lengthens():
    """The limit follows what was accepted, one more than that being worth a try."""
    limit, seen = DraftLimit(8), []
    for num_accepted in (2, 2, 2, 3, 4):
        limit.note(num_drafts=limit.next(), num_accepted=num_accepted)
        seen.append(limit.next())
    assert seen == [6, 4, 4, 4, 6]


def test_drafts_that_all_stand_lead_back_to_the_most():
    """A sequence that becomes predictable has the most again after a few samples."""
    limit = DraftLimit(8)
    for _ in range(2):
        limit.note(num_drafts=limit.next(), num_accepted=0)
    for _ in range(4):
        num_drafts = limit.next()
        limit.note(num_drafts=num_drafts, num_accepted=num_drafts)
    assert limit.next() == 8


def test_drafts_that_never_stand_are_asked_for_ever_less_often():
    """One try, then a pause, each twice as long as the one before up to the longest."""
    limit, pauses = DraftLimit(4), []
    for _ in range(FAILURES_BEFORE_PAUSE + 6):
        limit.note(num_drafts=limit.next(), num_accepted=0)
        pause = 0
        while not (num_drafts := limit.next()):
            pause += 1
        pauses.append(pause)
        assert num_drafts >= 1
    assert pauses == [0, 0, 2, 4, 8, 16, 16, 16, 16]
    assert max(pauses) == LONGEST_PAUSE


def test_one_right_draft_ends_the_pauses():
    """A draft that stands, also of a sample before the pause, lets the next ones follow at once."""
    limit = DraftLimit(4)
    for _ in range(FAILURES_BEFORE_PAUSE):
        limit.note(num_drafts=1, num_accepted=0)
    assert limit.next() == 0
    limit.note(num_drafts=1, num_accepted=1)
    assert limit.next() > 0
    limit.note(num_drafts=1, num_accepted=0)
    assert limit.next() > 0
