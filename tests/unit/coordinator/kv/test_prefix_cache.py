"""Facts of the prefix cache: what it finds, and what it does not."""

from array import array

from coordinator.kv.prefix_cache import NoPrefixCache, PrefixCache


def _tokens(count: int, *, first: int = 0) -> "array[int]":
    return array("i", range(first, first + count))


def _publish(cache: PrefixCache, token_ids: "array[int]", blocks: list[int]) -> list[bool]:
    hashes: list[bytes] = []
    return [
        cache.publish(hashes, token_ids, index=index, block=block)
        for index, block in enumerate(blocks)
    ]


def test_longest_published_prefix_is_found():
    """A longer sequence that begins alike gets the blocks it shares, and no block after them."""
    cache = PrefixCache(block_size=4)
    _publish(cache, _tokens(8), [5, 6])
    assert cache.find([], _tokens(6)) == [5]
    assert cache.find([], _tokens(20)) == [5, 6]


def test_last_token_is_never_found():
    """A whole prompt that stands in the cache leaves its last token to compute."""
    cache = PrefixCache(block_size=4)
    _publish(cache, _tokens(8), [5, 6])
    assert cache.find([], _tokens(8)) == [5]
    assert cache.find([], _tokens(9)) == [5, 6]


def test_equal_tokens_after_other_tokens_are_another_prefix():
    """A block is found only behind the same blocks: its hash covers all tokens before it."""
    cache = PrefixCache(block_size=4)
    _publish(cache, _tokens(8), [5, 6])
    other = _tokens(4, first=50) + _tokens(5, first=4)
    assert cache.find([], other) == []


def test_known_prefix_keeps_its_first_block():
    """A second block with the same prefix is not published, what follows it is."""
    cache = PrefixCache(block_size=4)
    assert _publish(cache, _tokens(4), [5]) == [True]
    assert _publish(cache, _tokens(8), [7, 8]) == [False, True]
    assert cache.find([], _tokens(9)) == [5, 8]


def test_forgotten_block_hides_what_follows_it():
    """Without its first block a prefix is not found; the others still are once it is back."""
    cache = PrefixCache(block_size=4)
    _publish(cache, _tokens(12), [5, 6, 7])
    cache.forget(5)
    assert cache.find([], _tokens(13)) == []
    _publish(cache, _tokens(4), [9])
    assert cache.find([], _tokens(13)) == [9, 6, 7]


def test_forgetting_a_second_block_keeps_the_first():
    """A block that was refused is unknown, so taking it back hides nothing."""
    cache = PrefixCache(block_size=4)
    _publish(cache, _tokens(4), [5])
    _publish(cache, _tokens(4), [7])
    cache.forget(7)
    assert cache.find([], _tokens(5)) == [5]


def test_hashes_of_a_sequence_are_computed_once():
    """A look-up leaves its hashes with the sequence, and goes on from those it finds there."""
    cache = PrefixCache(block_size=4)
    hashes: list[bytes] = []
    assert cache.find(hashes, _tokens(13)) == []
    assert len(hashes) == 1
    _publish(cache, _tokens(8), [5, 6])
    first = hashes[0]
    assert cache.find(hashes, _tokens(13)) == [5, 6]
    assert hashes[0] is first
    assert len(hashes) == len(set(hashes)) == 3


def test_cleared_cache_finds_nothing():
    """After a clear no prefix is known, and the same one can be published anew."""
    cache = PrefixCache(block_size=4)
    _publish(cache, _tokens(4), [5])
    cache.clear()
    assert cache.find([], _tokens(5)) == []
    assert _publish(cache, _tokens(4), [7]) == [True]


def test_no_prefix_cache_finds_nothing():
    """The empty version takes everything and finds nothing."""
    cache = NoPrefixCache()
    assert not cache.publish([], _tokens(4), index=0, block=5)
    assert cache.find([], _tokens(5)) == []
