"""A webhook: batches of records by POST, signed, with an idempotency key."""

from __future__ import annotations

import hashlib
import hmac
import time
from email.utils import parsedate_to_datetime
from typing import Any

import aiohttp
import msgspec

from shoal.config.sinks import SinkConfig
from shoal.errors import SinkFailed
from shoal.sinks.sink import Envelope, RecordsRefused, SinkBatch, envelope

SIGNATURE_HEADER, TIMESTAMP_HEADER = "Shoal-Signature", "Shoal-Timestamp"
MAX_WAIT_SECONDS = 300.0
# The receiver does not take this body; smaller parts of it may be taken.
_REFUSED = {400, 406, 413, 415, 422}
MAX_ANSWER_CHARS = 200


class WebhookBody(msgspec.Struct, frozen=True, kw_only=True):
    """`replaced`: items whose records from the given number on no longer exist."""

    sink: str
    records: list[Envelope]
    replaced: list[dict[str, Any]]


class WebhookSink:
    def __init__(self, config: SinkConfig) -> None:
        self._config = config
        self._session: aiohttp.ClientSession | None = None

    async def deliver(self, batch: SinkBatch) -> None:
        """2xx: delivered. 400, 406, 413, 415, 422: refused, so the batch is divided. Others: tried again later."""
        if not batch.records and not batch.replaced:
            return
        body = msgspec.json.encode(
            WebhookBody(
                sink=self._config.name,
                records=[envelope(record) for record in batch.records],
                replaced=[{"run_id": item.run_id, "item": item.item, "from_n": item.count} for item in batch.replaced],
            )
        )
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=self._config.timeout))
        async with self._session.post(
            self._config.url or "", data=body, headers=self._headers(body), allow_redirects=False
        ) as response:
            if 200 <= response.status < 300:
                return
            said = " ".join((await response.content.read(2 * MAX_ANSWER_CHARS)).decode(errors="replace").split())
            text = f"{response.status} {response.reason or ''}".strip()
            answer = f"{text}: {said[:MAX_ANSWER_CHARS]}" if said else text
            if response.status in _REFUSED:
                raise RecordsRefused(answer)
            wait = _retry_after(response.headers.get("Retry-After"))
            raise SinkFailed(f"{self._config.place} answered {answer}.", retry_after=wait)

    def _headers(self, body: bytes) -> dict[str, str]:
        """The same body has the same idempotency key. The signature covers the timestamp, against replays."""
        timestamp = str(int(time.time()))
        headers = {
            "Content-Type": "application/json",
            "Idempotency-Key": hashlib.sha256(body).hexdigest(),
            TIMESTAMP_HEADER: timestamp,
        }
        if self._config.secret is not None:
            headers[SIGNATURE_HEADER] = signature(self._config.secret, timestamp, body)
        return headers

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """HMAC-SHA256 of `timestamp.body`, as the receiver computes it."""
    return "sha256=" + hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()


def _retry_after(header: str | None) -> float:
    """Seconds of a Retry-After header, a number or a date; 0 without one."""
    if header is None:
        return 0.0
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(header).timestamp() - time.time()
        except ValueError:
            return 0.0
    return min(max(seconds, 0.0), MAX_WAIT_SECONDS)
