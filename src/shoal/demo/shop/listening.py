"""The shop's two addresses: one port of the loopback, two hosts."""

from __future__ import annotations

import errno
import socket

from shoal.errors import InvalidSetting

SHOP_HOST = "127.0.0.1"
_OUTLET_HOST = "127.0.0.2"
# Some systems give the loopback one address only. There the outlet goes by another name of the same address.
_OUTLET_NAME = "localhost"
_PORT_TRIES = 20


def listen(port: int) -> tuple[list[socket.socket], str]:
    """The sockets of both hosts on one port, and the outlet's host."""
    for _ in range(_PORT_TRIES):
        shop = _bound(SHOP_HOST, port)
        try:
            outlet = _bound(_OUTLET_HOST, shop.getsockname()[1])
        except _CannotBind as error:
            if not error.taken:
                return [shop], _OUTLET_NAME
            shop.close()
            if port:
                raise
        else:
            return [shop, outlet], _OUTLET_HOST
    raise InvalidSetting("No port is free on both addresses of the shop.", remedy="Name a free one with `port`.")


class _CannotBind(InvalidSetting):
    remedy = "Choose another port, or 0 for any that is free."

    def __init__(self, host: str, port: int, error: OSError) -> None:
        super().__init__(f"The shop cannot open {host}:{port}: {error.strerror}.")
        self.taken = error.errno == errno.EADDRINUSE


def _bound(host: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise _CannotBind(host, port, error) from error
    listener.listen(512)
    return listener
