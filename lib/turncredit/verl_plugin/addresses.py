"""Servers that agent loops ask on every node, and addresses that mean another machine on each."""

import ipaddress
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from turncredit.verl_plugin.settings import AgentSettings

_NAMES = ("localhost", "localhost.localdomain", "ip6-localhost")
HEAD = "${actor_rollout_ref.rollout.custom.head}"
"""How files of params/cluster write the node with the servers."""

NODE = "actor_rollout_ref.rollout.custom.turncredit"


def asked(settings: "AgentSettings") -> dict[str, str]:
    """The addresses that agent loops ask, by their keys in verl's configuration."""
    found = {}
    if settings.retriever.KIND == "server":
        found[f"{NODE}.retriever.url"] = settings.retriever.url
    if settings.environment.KIND == "deep_research" and settings.judge.KIND == "endpoint":
        found[f"{NODE}.judge.base_url"] = settings.judge.base_url
    return found


def host_of(url: str) -> str:
    """The name or number of the machine in an address, '' if there is none."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def means_this_machine(url: str) -> bool:
    """Whether an address leads every machine to itself.

    >>> [means_this_machine(f"http://{host}:8000") for host in ("localhost", "127.0.0.1", "[::1]")]
    [True, True, True]
    >>> [means_this_machine(f"http://{host}:8000") for host in ("first-node", "10.0.0.1")]
    [False, False]
    """
    host = host_of(url).rstrip(".")
    if host in _NAMES or host.endswith(".localhost"):
        return True
    number = _number(host)
    return number is not None and (number.is_loopback or number.is_unspecified)


def _number(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address that a host is written as, in any way that sockets read; None for a name."""
    try:
        number = ipaddress.ip_address(host)
    except ValueError:
        try:
            return ipaddress.ip_address(socket.inet_aton(host))  # such as 127.1
        except OSError:
            return None
    return getattr(number, "ipv4_mapped", None) or number


def require_reachable(
    settings: "AgentSettings", nodes: int, said_by: Callable[[str], str] = str
) -> None:
    """ValueError naming the key of an address that a second node would look for on itself.

    said_by: how to name a key, such as with its file.
    """
    for key, url in asked(settings).items():
        if nodes > 1 and means_this_machine(url):
            raise ValueError(
                f"{said_by(key)} = {url}: each of {nodes} nodes would ask itself; name the node "
                "with the server as all nodes reach it (`train --head ADDRESS`, or rollout.custom."
                "head in the machine's file), and let the server listen there (--host)"
            )
