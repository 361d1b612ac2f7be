"""The mailbox of a receiver, without a channel around it."""

from dataclasses import replace

import pytest

from common.channels.cancel import CancelToken
from common.channels.mailbox import ChannelMember, Mailbox
from common.errors import Cancelled, DeadlineExceeded, TensorError
from common.step import Phase, StepId, StepKey
from common.worker_api import Rank

OWNER = ChannelMember(epoch=2, generation=5, rank=Rank(stage=1))
SENDER = ChannelMember(epoch=2, generation=5, rank=Rank(stage=0))


def key(step: int, phase: Phase = Phase.EXECUTE) -> StepKey:
    """A phase of a step of the owner's generation."""
    return StepKey(step_id=StepId(epoch=2, generation=5, step=step), phase=phase)


@pytest.fixture
def mailbox() -> Mailbox:
    """Open with room for two."""
    mailbox = Mailbox()
    mailbox.open(OWNER, capacity=2)
    return mailbox


def take(mailbox: Mailbox, step: int):
    """What is there for a step, without waiting."""
    return mailbox.take(key(step), cancel=CancelToken(), timeout=0)


def test_reading_makes_room(mailbox):
    """The bound counts unread deliveries, not all that ever came."""
    for step in range(1, 9):
        mailbox.deliver(SENDER, key(step), ())
        assert take(mailbox, step) == ()


def test_same_key_twice(mailbox):
    """Tensors of one key from two messages are an error, since one of them is wrong."""
    mailbox.deliver(SENDER, key(1), ())
    mailbox.deliver(SENDER, key(1), ())
    with pytest.raises(TensorError, match="arrived twice"):
        take(mailbox, 1)


def test_error_in_place_of_tensors(mailbox):
    """An error delivered for a key fails that key alone."""
    mailbox.deliver(SENDER, key(1), TensorError("torn"))
    mailbox.deliver(SENDER, key(2), ())
    assert take(mailbox, 2) == ()
    with pytest.raises(TensorError, match="torn"):
        take(mailbox, 1)


@pytest.mark.parametrize(
    "sender",
    [
        ChannelMember(epoch=1, generation=5, rank=Rank(stage=0)),
        ChannelMember(epoch=2, generation=4, rank=Rank(stage=0)),
        ChannelMember(epoch=2, generation=6, rank=Rank(stage=0)),
        ChannelMember(epoch=2, generation=5, rank=Rank(stage=1)),
        ChannelMember(epoch=2, generation=5, rank=Rank(replica=1, stage=0)),
    ],
)
def test_strangers_are_refused(mailbox, sender):
    """Other epochs, generations, replicas and stages leave nothing and are counted."""
    for step in (1, 2, 3):
        mailbox.deliver(sender, key(step), ())
    assert mailbox.num_refused == 3
    mailbox.deliver(SENDER, key(1), ())
    assert take(mailbox, 1) == ()


@pytest.mark.parametrize(
    ("sender", "level"),
    [
        (ChannelMember(epoch=2, generation=4, rank=Rank(stage=0)), "INFO"),
        (ChannelMember(epoch=2, generation=5, rank=Rank(stage=1)), "WARNING"),
    ],
)
def test_only_frames_of_a_wrong_place_alarm(mailbox, caplog, sender, level):
    """What was on its way when its generation ended is nothing to look into."""
    caplog.set_level("INFO")
    mailbox.deliver(sender, key(1), ())
    assert [record.levelname for record in caplog.records] == [level]


@pytest.fixture
def first() -> Mailbox:
    """The mailbox of a first stage, with room for two."""
    mailbox = Mailbox()
    mailbox.open(replace(OWNER, rank=Rank()), capacity=2)
    return mailbox


def test_the_first_stage_hears_later_ones(first):
    """Tokens that a later stage sampled come to the first one, and from no stage of another replica."""
    first.deliver(replace(OWNER, rank=Rank(stage=2)), key(1), ())
    first.deliver(replace(OWNER, rank=Rank(replica=1, stage=2)), key(2), ())
    first.deliver(replace(OWNER, rank=Rank()), key(2), ())
    assert take(first, 1) == ()
    assert first.num_refused == 2


def test_unread_tokens_of_committed_steps_make_room(first):
    """With two steps in flight the tokens of a step are of no use once the step after next is sampled."""
    for step in range(1, 6):
        first.deliver(OWNER, key(step, Phase.SAMPLE), ())
    for step in (4, 5):
        assert first.take(key(step, Phase.SAMPLE), cancel=CancelToken(), timeout=0.0) == ()
    with pytest.raises(DeadlineExceeded):
        first.take(key(3, Phase.SAMPLE), cancel=CancelToken(), timeout=0.0)


def test_shut_refuses_and_forgets(mailbox):
    """A shut mailbox holds nothing, takes nothing, and ends every take with Cancelled."""
    mailbox.deliver(SENDER, key(1), ())
    mailbox.shut()
    mailbox.deliver(SENDER, key(2), ())
    for step in (1, 2):
        with pytest.raises(Cancelled):
            take(mailbox, step)


def test_opening_forgets_a_failure(mailbox):
    """A new generation starts without the failure of the last one."""
    mailbox.fail(TensorError("broken"))
    with pytest.raises(TensorError, match="broken"):
        take(mailbox, 1)
    mailbox.open(OWNER, capacity=2)
    mailbox.deliver(SENDER, key(1), ())
    assert take(mailbox, 1) == ()


class CountingToken(CancelToken):
    """A token that counts the callbacks it holds."""

    num_callbacks = 0

    def add_callback(self, callback):
        """Hold one more."""
        super().add_callback(callback)
        self.num_callbacks += 1

    def remove_callback(self, callback):
        """Hold one less."""
        super().remove_callback(callback)
        self.num_callbacks -= 1


def test_take_leaves_no_callback(mailbox):
    """A token outlives many takes without gathering callbacks."""
    cancel = CountingToken()
    for step in range(1, 4):
        mailbox.deliver(SENDER, key(step), ())
        mailbox.take(key(step), cancel=cancel, timeout=0)
    assert cancel.num_callbacks == 0
