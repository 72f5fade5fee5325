"""What went wrong with TLS on the way to a server, in Shoal's words.

The driver reports it in the same classes as a server that is not there, whose remedy would mislead.
"""

from __future__ import annotations

import ssl

import asyncpg

from shoal.errors import LedgerUnreachable


def tls_error(error: BaseException, url: str, display_url: str) -> LedgerUnreachable | None:
    """The error to raise when a login failed because of TLS; None when it failed for another reason."""
    if isinstance(error, ConnectionError) and "rejected SSL" in str(error):
        return LedgerUnreachable(
            f"{display_url} does not speak TLS, and `sslmode` demands it.",
            remedy="Turn TLS on at the server, or say sslmode=prefer.",
        )
    if isinstance(error, ssl.SSLError):
        return LedgerUnreachable(
            f"{display_url} is not trusted: {error.strerror or error}.",
            remedy="Name the file of its certificate authority with sslrootcert=FILE in the address or PGSSLROOTCERT.",
        )
    lacks_file = isinstance(error, asyncpg.ClientConfigurationError) and "certificate" in str(error)
    if lacks_file or (isinstance(error, FileNotFoundError) and "sslrootcert=" in url):
        return LedgerUnreachable(
            f"{display_url} cannot be verified: the file of its certificate authority is not there.",
            remedy="Name that file with sslrootcert=FILE in the address or PGSSLROOTCERT, or say sslmode=require.",
        )
    return None
