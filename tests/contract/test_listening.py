"""Addresses that cannot be listened on, and the lines that say so."""

import re

import pytest

from common.errors import ConfigError
from common.listening import listen


def test_port_0_is_a_free_one():
    """Port 0 gives a listening socket with a port of its own."""
    with listen("127.0.0.1", 0, backlog=1) as socket:
        assert socket.getsockname()[1] > 0


def test_a_taken_port_is_named_once_with_what_to_do():
    """The error is one sentence: the address, the system's words, and the way out."""
    with listen("127.0.0.1", 0, backlog=1) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match="choose another port") as refused:
            listen("127.0.0.1", taken.getsockname()[1], backlog=1)
    assert re.findall(r"127\.0\.0\.1", str(refused.value)) == ["127.0.0.1"]
    assert str(refused.value).startswith(f"cannot listen on {address}: ")


def test_an_address_of_another_machine_is_refused():
    """An address of a documentation network belongs to no machine."""
    with pytest.raises(ConfigError, match=r"192\.0\.2\.1:0.*name an address of this machine"):
        listen("192.0.2.1", 0, backlog=1)


def test_an_unknown_host_is_told_in_the_words_of_the_look_up():
    """A name that nobody knows has no number among the system's errors."""
    with pytest.raises(ConfigError, match=r"nowhere\.invalid:0: Name or service not known; check"):
        listen("nowhere.invalid", 0, backlog=1)
