"""One uvicorn server that stops at once although event streams are open."""

import errno
import socket
from collections.abc import Callable
from ipaddress import ip_address

import uvicorn
from fastapi import FastAPI

SHUTDOWN_BACKSTOP_S = 5


class PortInUse(OSError):
    """Another process listens there already."""


def bind(host: str, port: int) -> socket.socket:
    """A listening socket's address, taken before any work is done."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    taken = socket.socket(family, socket.SOCK_STREAM)
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        taken.bind((host.strip("[]"), port))
        taken.listen()
    except OSError as error:
        taken.close()
        if error.errno == errno.EADDRINUSE:
            raise PortInUse(
                f"port {port} on {host} is in use; choose another with --port (0 picks a free one)"
            ) from error
        raise
    return taken


def url_of(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}/" if ip_address(host).version == 6 else f"http://{host}:{port}/"


class Server(uvicorn.Server):
    """Ends the streams before it waits for connections: uvicorn alone would wait for ever."""

    def __init__(self, app: FastAPI, close_streams: Callable[[], None]) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                log_level="warning",
                access_log=False,
                timeout_graceful_shutdown=SHUTDOWN_BACKSTOP_S,
                # the Server header tells strangers what to attack
                server_header=False,
            )
        )
        self._close_streams = close_streams

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._close_streams()
        await super().shutdown(sockets=sockets)
