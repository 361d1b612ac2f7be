"""Refuses to listen beyond loopback without encryption, unless that was said to be meant.

Knows addresses by their spelling; looks no name up.
"""

from ipaddress import ip_address

from common.errors import ConfigError


def check_plaintext(*, is_allowed: bool, **hosts: str) -> None:
    """Raise ConfigError for the first of `hosts` (setting to host) that others than this machine reach."""
    for name, host in hosts.items():
        if not is_allowed and not is_loopback(host):
            raise ConfigError(
                f"{name} is {host!r}, which other machines may reach, and nothing is encrypted "
                f"there: add --allow-plaintext where that network is trusted, or listen on 127.0.0.1"
            )


def is_loopback(host: str) -> bool:
    """Whether a host to listen on is spelt so that this machine alone reaches it."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
