"""Facts of counting values between bounds."""

from common.distribution import Distribution, one_two_five


def test_a_bound_belongs_to_the_values_below_it():
    """A value equal to a bound counts under it; what lies above the last bound counts too."""
    seconds = Distribution((0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 1.0, 7.0):
        seconds.add(value)
    assert seconds.counts == [2, 2, 1]
    assert seconds.num_values == 5
    assert seconds.total == 0.05 + 0.1 + 0.5 + 1.0 + 7.0


def test_equal_values_are_counted_at_once():
    """So many times the value is the same as adding it so often."""
    tokens = Distribution((1, 2, 5))
    tokens.add(2, 3)
    assert (tokens.counts, tokens.total) == ([0, 3, 0, 0], 6)


def test_bounds_that_nothing_can_exceed_are_left_out():
    """The counts and the sum stay those of all values; the original is as it was."""
    tokens = Distribution(one_two_five(1000))
    for value in (1, 7, 90):
        tokens.add(value)
    short = tokens.up_to(50)
    assert short.bounds == (1, 2, 5, 10, 20, 50)
    assert short.counts == [1, 0, 0, 1, 0, 0, 1]
    assert (short.num_values, short.total) == (3, 98)
    assert len(tokens.bounds) == 10


def test_bounds_end_at_the_largest():
    """The series 1, 2, 5 goes on as long as it does not exceed the largest."""
    assert one_two_five(99) == (1, 2, 5, 10, 20, 50)
    assert one_two_five(100) == (1, 2, 5, 10, 20, 50, 100)
