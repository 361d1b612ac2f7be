"""Which coordinator commands a worker."""

import pytest

from common.errors import Fenced
from common.worker_api import Authority
from tests.fakes.manual_steps import step_id
from worker_service.claim import Claim

OLD = Authority(coordinator_id="old", epoch=1)
NEW = Authority(coordinator_id="new", epoch=2)


def test_unclaimed_worker_takes_any_coordinator() -> None:
    """A new worker has seen no epoch and refuses nobody."""
    claim = Claim()
    assert (claim.epoch, claim.generation) == (0, 0)
    claim.check(OLD)
    claim.check(NEW)


def test_higher_epoch_claims_and_lower_is_fenced() -> None:
    """The coordinator with the highest epoch commands; the one before it no longer does."""
    claim = Claim()
    claim.begin(OLD, 7)
    claim.take(NEW)
    assert (claim.epoch, claim.generation) == (2, 0)
    with pytest.raises(Fenced, match="old of epoch 1"):
        claim.check(OLD)


def test_checking_alone_claims_nothing() -> None:
    """A newer coordinator whose call fails leaves the worker with its holder."""
    claim = Claim()
    claim.take(OLD)
    claim.check(NEW)
    claim.check(OLD)
    assert claim.epoch == 1


def test_second_coordinator_of_an_epoch_is_fenced() -> None:
    """Two coordinators that chose the same epoch do not share a worker."""
    claim = Claim()
    claim.take(OLD)
    with pytest.raises(Fenced):
        claim.check(Authority(coordinator_id="twin", epoch=1))


def test_generations_of_a_coordinator_grow() -> None:
    """A generation that is not newer is fenced; a new coordinator may start from any."""
    claim = Claim()
    claim.begin(OLD, 2)
    for generation in (1, 2):
        with pytest.raises(Fenced, match="not newer than generation 2"):
            claim.begin(OLD, generation)
    assert (claim.epoch, claim.generation) == (1, 2)
    claim.begin(OLD, 3)
    claim.begin(NEW, 1)
    assert (claim.epoch, claim.generation) == (2, 1)


def test_who_lost_the_worker_does_not_get_it_back() -> None:
    """A call that was admitted before another coordinator came takes nothing from it."""
    claim = Claim()
    claim.begin(NEW, 1)
    for call in (claim.take, lambda authority: claim.begin(authority, 9)):
        with pytest.raises(Fenced):
            call(OLD)
    assert (claim.epoch, claim.generation) == (2, 1)


def test_steps_of_the_newest_generation_are_current() -> None:
    """Epoch and generation compare lexicographically: a lower pair is past, a higher one neither."""
    claim = Claim()
    claim.begin(NEW, 2)
    past = [step_id(1, epoch=2, generation=1), step_id(1, epoch=1, generation=9)]
    current, coming = step_id(9, epoch=2, generation=2), step_id(1, epoch=3, generation=1)
    assert all(claim.is_past(each) and not claim.is_current(each) for each in past)
    assert claim.is_current(current)
    assert not claim.is_past(current)
    assert not claim.is_past(coming)
    assert not claim.is_current(coming)


def test_a_coordinator_has_begun_what_it_began() -> None:
    """Claiming alone begins nothing, and what an earlier coordinator began is not the newest one's."""
    claim = Claim()
    claim.take(OLD)
    assert not claim.has_begun(OLD)
    claim.begin(OLD, 1)
    assert claim.has_begun(OLD)
    claim.take(NEW)
    assert not claim.has_begun(OLD)
    assert not claim.has_begun(NEW)
