"""What went wrong between us and a site, as one sentence that names the site and the cause."""

from __future__ import annotations

import errno
import os
import ssl

import aiohttp

from shoal.errors import AttemptEnded, Permanent, Transient
from shoal.fetch import address
from shoal.fetch.private import PrivateAddress
from shoal.model.urlkey import shown

# What aiohttp and the network may raise while a request is under way.
WIRE_ERRORS = (aiohttp.ClientError, OSError, TimeoutError, ValueError)


def explained(error: BaseException, url: str) -> AttemptEnded:
    """The attempt's end that an error of the wire stands for."""
    site = _site(url)
    if isinstance(error, aiohttp.InvalidURL):
        return Permanent(f"{shown(url)} is not a URL that can be fetched")
    if isinstance(error, UnicodeError):
        return Permanent(f"{site} is no valid host name")
    if isinstance(error, aiohttp.ClientConnectorError) and isinstance(error.os_error, PrivateAddress):
        return Permanent(f"{site} has an address that is not public, which deny_private refuses")
    # A certificate error is a ValueError to Python, but none of the request.
    if isinstance(error, ValueError) and not isinstance(error, aiohttp.ClientError):
        return Permanent(f"the request to {site} cannot be sent: {_sentence(error)}")
    return Transient(f"{site}: {_cause(error)}")


def _cause(error: BaseException) -> str:
    match error:
        case aiohttp.ClientConnectorCertificateError():
            text = f"the certificate could not be verified: {_certificate_problem(error.certificate_error)}"
        case aiohttp.ClientConnectorDNSError():
            text = f"the host name could not be resolved: {_os_reason(error.os_error)}"
        case aiohttp.ClientConnectorSSLError():
            text = f"the TLS handshake failed: {_os_reason(error.os_error)}"
        case aiohttp.ClientConnectorError():
            text = f"no connection: {_os_reason(error.os_error)}"
        case aiohttp.ConnectionTimeoutError():
            text = "no connection in time"
        case TimeoutError():
            text = "the site stopped answering: nothing came for too long"
        case aiohttp.ServerDisconnectedError():
            text = "the site closed the connection without an answer"
        case aiohttp.ClientPayloadError():
            text = "the site broke off: the body is not complete"
        case aiohttp.ClientResponseError():
            text = f"the site does not answer in proper HTTP: {_first_line(error.message)}"
        case OSError():
            text = f"the connection broke: {_os_reason(error)}"
        case _:
            text = f"the connection broke: {_sentence(error)}"
    return text


def _site(url: str) -> str:
    parsed = address.parsed(url)
    return parsed.host if parsed is not None and parsed.host else shown(url)


def _os_reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or _sentence(error)).replace("_", " ").lower()
    # The resolver's own numbers are negative or unknown to strerror, but they come with a text.
    if error.errno is not None and error.errno in errno.errorcode:
        return os.strerror(error.errno).lower()
    return (error.strerror or _sentence(error)).lower()


def _certificate_problem(error: Exception) -> str:
    return getattr(error, "verify_message", "") or _sentence(error)


def _first_line(text: str) -> str:
    lines = [line.strip(" :") for line in text.splitlines() if line.strip()]
    return lines[0][:120] if lines else "the answer makes no sense"


def _sentence(error: BaseException) -> str:
    return _first_line(str(error)) if str(error).strip() else type(error).__name__
