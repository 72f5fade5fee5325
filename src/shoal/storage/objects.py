"""Objects in S3, Google Cloud Storage and Azure (`s3://`, `gs://`, `az://`), by the package obstore."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from shoal.errors import ShoalError, StorageUnavailable, UsageError
from shoal.model.redaction import redacted
from shoal.storage.credentials import store_options

SCHEMES = {"s3": "S3Store", "gs": "GCSStore", "az": "AzureStore"}
# S3 allows 10,000 parts: an object has up to 156 GiB. At most PARTS_AT_ONCE + 1 parts are in memory.
PART_BYTES = 16 << 20
PARTS_AT_ONCE = 2
READ_BYTES = 1 << 20
MAX_RETRIES = 8
RETRY_SECONDS = 120.0

_CODE = re.compile(r"<Code>\s*([A-Za-z0-9]{1,60})\s*</Code>|\"(?:code|reason)\"\s*:\s*\"([A-Za-z0-9_]{1,60})\"")
_STATUS = re.compile(r"status code: (\d{3})")
_NETWORK = re.compile(r"Connection refused|Connection reset|timed out|dns error|certificate|Broken pipe", re.I)
# A request for credentials to the service of a cloud's machine, not one to the store.
_METADATA = re.compile(
    r"/latest/(?:api|meta-data)/|/computeMetadata/|/metadata/identity/|//169\.254\.169\.254|//metadata\."
)
_BUCKET_CODES = {"NoSuchBucket", "ContainerNotFound", "InvalidBucketName"}
_LOGIN_CODES = {
    *("InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "AuthenticationFailed"),
    *("RequestTimeTooSkewed", "AuthorizationHeaderMalformed", "TokenRefreshRequired"),
}


class ObjectUrl(msgspec.Struct, frozen=True):
    """The address of an object. `bucket`: called a container by Azure."""

    scheme: str
    bucket: str
    key: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.key}"


def is_object_url(place: str) -> bool:
    return place.partition("://")[0].lower() in SCHEMES and "://" in place


def parse_object_url(url: str) -> ObjectUrl:
    """Parse `s3://bucket/key`; the key is taken as it is written, without any decoding."""
    scheme, _, rest = url.partition("://")
    bucket, _, key = rest.partition("/")
    scheme = scheme.lower()
    if "@" in bucket or ":" in bucket:
        raise UsageError(
            f"{redacted(url)!r} contains a login or a port.",
            remedy=f"Write {scheme}://BUCKET/KEY; credentials and endpoints come from the environment.",
        )
    if not bucket or not re.fullmatch(r"[A-Za-z0-9._$-]+", bucket):
        raise UsageError(
            f"{redacted(url)!r} does not name a bucket.", remedy=f"Write it like {scheme}://BUCKET/folder/out.jsonl."
        )
    if not key or any(part in ("", ".", "..") for part in key.split("/")) or not key.isprintable():
        raise UsageError(
            f"{redacted(url)!r} does not name an object.",
            remedy=f"Write it like {scheme}://{bucket}/folder/out.jsonl, without empty parts, '.' and '..'.",
        )
    return ObjectUrl(scheme, bucket, key)


class ObjectTarget:
    """An object that is visible under its key when it is complete: a multipart upload, aborted by `discard`.

    Memory is bounded by (PARTS_AT_ONCE + 1) parts. Requests that fail for a moment are repeated.
    A process that is killed leaves an incomplete upload, which is not visible as an object.
    """

    folder: Path | None = None

    def __init__(self, url: ObjectUrl, *, content_type: str | None = None) -> None:
        self.name = str(url)
        self._written = 0
        with object_errors_explained(url):
            self._upload = require_obstore().open_writer(
                open_store(url),
                url.key,
                buffer_size=PART_BYTES,
                max_concurrency=PARTS_AT_ONCE,
                attributes={"Content-Type": content_type} if content_type else None,
            )
        self._url = url

    def write(self, data: bytes) -> int:
        with object_errors_explained(self._url):
            self._upload.write(data)
        self._written += len(data)
        return len(data)

    def tell(self) -> int:
        return self._written

    def commit(self) -> None:
        with object_errors_explained(self._url):
            self._upload.close()

    def discard(self) -> None:
        # Leaving the writer's context with an error aborts the upload. If that fails too, the first error counts.
        with suppress(Exception):
            self._upload.__exit__(ShoalError, ShoalError("The upload was dropped."), None)


def check_bucket(url: ObjectUrl) -> None:
    """Raise what can be known before writing: no bucket, wrong credentials, no answer. Without the right to list,
    nothing is known."""
    try:
        with object_errors_explained(url):
            next(iter(open_store(url).list(url.key, chunk_size=1)), None)
    except ObjectForbidden:
        return


@contextmanager
def object_errors_explained(url: ObjectUrl) -> Iterator[None]:
    """Turn errors of obstore into one sentence. Its own texts contain addresses and answers, thus maybe secrets."""
    try:
        yield
    except ShoalError:
        raise
    except Exception as problem:
        if not isinstance(problem, _errors().BaseError | ValueError | OSError):
            raise
        raise _explained(url, problem) from None


class ObjectMissing(UsageError):
    """There is no such object."""

    remedy = "Check the address."


class ObjectForbidden(UsageError):
    """The credentials are known, but have not the right."""


def _explained(url: ObjectUrl, problem: Exception) -> ShoalError:
    text = str(problem)
    match = _CODE.search(text)
    code = (match[1] or match[2]) if match else ""
    status = found[1] if (found := _STATUS.search(text)) else ""
    said = f"{status} {code}".strip()
    if _METADATA.search(text):
        return UsageError(
            f"The metadata service of this machine gives no credentials for {url.scheme}://{url.bucket} ({said}).",
            remedy="Give the machine a role, or set credentials; docs/export.md lists where they are read from.",
        )
    if code in _BUCKET_CODES:
        return UsageError(f"There is no bucket {url.scheme}://{url.bucket} ({said}).", remedy="Create it first.")
    if code in _LOGIN_CODES or isinstance(problem, _errors().UnauthenticatedError):
        return UsageError(
            f"The credentials for {url.scheme}://{url.bucket} are refused ({said}).",
            remedy="Check key, region and clock; docs/export.md lists where credentials are read from.",
        )
    if isinstance(problem, _errors().PermissionDeniedError) or status == "403":
        return ObjectForbidden(
            f"{url} is forbidden ({said}).", remedy="Grant these credentials the right, or use others."
        )
    if isinstance(problem, FileNotFoundError):
        return ObjectMissing(f"There is no {url}.")
    if status.startswith("3"):
        return UsageError(
            f"The bucket {url.scheme}://{url.bucket} is in another region ({said}).", remedy="Set AWS_REGION to it."
        )
    if status.startswith("4") and status not in ("408", "429"):
        return UsageError(f"{url} was refused ({said}).", remedy="Correct the address or the credentials.")
    network = _NETWORK.search(text)
    why = said or (network[0].lower() if network else type(problem).__name__)
    return StorageUnavailable(f"{url.scheme}://{url.bucket} gave no usable answer ({why}).")


def open_store(url: ObjectUrl) -> Any:
    """The store of a bucket, with today's credentials; equal options share one client with its connections."""
    require_obstore()
    options = store_options(url.scheme)
    provider = options.pop("credential_provider", None)
    frozen = tuple((name, tuple(sorted(value.items()))) for name, value in sorted(options.items()))
    return _store(url.scheme, url.bucket, frozen, provider)


@lru_cache(maxsize=32)
def _store(scheme: str, bucket: str, options: tuple[Any, ...], provider: Any) -> Any:
    stores = importlib.import_module("obstore.store")
    keywords: dict[str, Any] = {name: dict(pairs) for name, pairs in options}
    if provider is not None:
        keywords["credential_provider"] = provider
    retry = {"max_retries": MAX_RETRIES, "retry_timeout": timedelta(seconds=RETRY_SECONDS)}
    return getattr(stores, SCHEMES[scheme])(bucket, retry_config=retry, **keywords)


def require_obstore() -> Any:
    """Import obstore on first use."""
    try:
        return importlib.import_module("obstore")
    except ImportError:
        raise UsageError(
            "Object stores need the package obstore, which is not installed.",
            remedy="Install it with `pip install 'shoal[s3]'`, or name a local file.",
        ) from None


def _errors() -> Any:
    return importlib.import_module("obstore.exceptions")
