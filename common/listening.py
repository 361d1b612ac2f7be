"""Finds out whether an address can be listened on, and says what to do when it cannot."""

import errno
import os
import socket

from common.config import join_address
from common.errors import ConfigError

_ADVICE = {
    errno.EADDRINUSE: "end what listens there, or choose another port",
    errno.EADDRNOTAVAIL: "name an address of this machine, or 0.0.0.0 for all",
    errno.EACCES: "choose a port above 1023",
}


def listen(host: str, port: int, *, backlog: int) -> socket.socket:
    """A listening TCP socket; port 0 picks a free one. Raises ConfigError when there is none."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=backlog)
    except OSError as error:
        raise ConfigError(f"cannot listen on {join_address(host, port)}: {_why(error)}") from error


def _why(error: OSError) -> str:
    """The system's own words, which Python mixes with the address, and what to do."""
    # Failed look-ups of a name have a number below 0, and words only in the error.
    number = error.errno or 0
    words = os.strerror(number) if number > 0 else str(error.strerror).partition(" (")[0]
    return f"{words}; {_ADVICE.get(number, 'check its host and port')}"
