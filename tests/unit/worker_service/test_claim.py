"""Which coordinator commands a worker."""

import pytest

from common.errors import Fenced
from common.worker_api import Authority
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
    claim.take(OLD)
    claim.begin(7)
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
    claim.take(OLD)
    claim.begin(2)
    for generation in (1, 2):
        with pytest.raises(Fenced):
            claim.check_generation(OLD, generation)
    claim.check_generation(OLD, 3)
    claim.check_generation(NEW, 1)
