"""The HTTP server: listening, and a shutdown that lets answers end."""

from __future__ import annotations

import contextlib
import socket
from ipaddress import ip_address

import uvicorn

from latticebpd.serving.api import Service
from latticebpd.serving.scheduler import Scheduler


class GracefulServer(uvicorn.Server):
    """At the signal to end: takes no more requests, and gives those in flight some seconds to end."""

    def __init__(self, config: uvicorn.Config, scheduler: Scheduler, seconds: float) -> None:
        super().__init__(config)
        self.scheduler, self.seconds = scheduler, seconds

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.scheduler.drain(self.seconds)
        await super().shutdown(sockets)


def server_of(service: Service, seconds: float = 10.0, log_level: str = "info") -> GracefulServer:
    """The server of a service; ``seconds``: that requests in flight have at a shutdown."""
    longest = int(seconds) + 5  # uvicorn's own limit, for clients that do not read
    config = uvicorn.Config(service.app, log_level=log_level, timeout_graceful_shutdown=longest, server_header=False)
    return GracefulServer(config, service.scheduler, seconds)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; OSError where the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise OSError(f"expected to listen on {host}, port {port}: {error.strerror or error}") from error


def is_loopback(host: str) -> bool:
    """Whether only programs on this machine can connect to an address."""
    with contextlib.suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost"
