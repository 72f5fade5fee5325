"""Objects in S3: visible when complete, aborted on failure, retried, with credentials that are never shown.

The listing of the server, read by another client, is the witness.
"""

from __future__ import annotations

import gzip
import os
import socket
from pathlib import Path

import pytest

from shoal.errors import ShoalError, StorageUnavailable, UsageError
from shoal.storage import Target, check_writable, delete, open_target, read, stat
from shoal.storage.compression import CompressedTarget, Compression
from tests.support.object_store import BUCKET, KEY_ID, PART_BYTES, SECRET, S3Server, fault_proxy

PART = PART_BYTES


@pytest.fixture(autouse=True)
def few_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.storage.objects.MAX_RETRIES", 3)


def url(key: str) -> str:
    return f"s3://{BUCKET}/{key}"


def write_all(target: Target, blocks: list[bytes]) -> None:
    for block in blocks:
        target.write(block)
    target.commit()


def test_nothing_is_visible_until_commit(s3: S3Server) -> None:
    target = open_target(url("deep/out.bin"), content_type="text/csv")
    blocks = [os.urandom(PART - 1) for _ in range(4)]
    for block in blocks:
        target.write(block)
    assert s3.uploads() == ["deep/out.bin"]  # parts are sent while more is written
    assert s3.objects() == {}
    target.commit()
    assert s3.objects() == {"deep/out.bin": 4 * PART - 4} == {"deep/out.bin": target.tell()}
    assert s3.content("deep/out.bin") == b"".join(blocks)
    assert s3.uploads() == []
    assert s3.client.head_object(Bucket=BUCKET, Key="deep/out.bin")["ContentType"] == "text/csv"


@pytest.mark.parametrize("size", [0, 1, 3 * PART])
def test_a_discarded_object_leaves_nothing_and_the_old_one_stays(s3: S3Server, size: int) -> None:
    s3.client.put_object(Bucket=BUCKET, Key="out", Body=b"old")
    target = open_target(url("out"))
    target.write(bytes(size))
    target.discard()
    assert (s3.objects(), s3.uploads()) == ({"out": 3}, [])


def test_small_and_empty_objects(s3: S3Server) -> None:
    for key, data in (("empty", b""), ("small", b"x"), ("a b?%41ü#&+.jsonl", b"odd")):
        target = open_target(url(key))
        target.write(data)
        target.commit()
        assert s3.content(key) == data
    assert s3.objects().keys() == {"empty", "small", "a b?%41ü#&+.jsonl"}


@pytest.mark.parametrize("status", [0, 500, 503, 429])
def test_failures_that_pass_are_repeated(s3: S3Server, monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    """Each request of the upload fails once: begin, parts, completion."""
    seen: set[str] = set()

    def first_time(method: str, path: str) -> int | None:
        step = f"{method} {path.split('uploadId', maxsplit=1)[0]}"
        if step in seen:
            return None
        seen.add(step)
        return status

    with fault_proxy(s3.endpoint, first_time) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        target = open_target(url("out"))
        data = os.urandom(2 * PART + 1)
        target.write(data)
        target.commit()
        assert len(proxy.requests) >= 2 * len(seen) >= 4
    assert s3.content("out") == data
    assert s3.uploads() == []


@pytest.mark.parametrize("step", ["partNumber=2", "POST"])
@pytest.mark.parametrize("status", [503, 403])
def test_a_failed_upload_is_aborted(s3: S3Server, monkeypatch: pytest.MonkeyPatch, status: int, step: str) -> None:
    def fault(method: str, path: str) -> int | None:
        completion = method == "POST" and "uploadId" in path
        return status if (completion if step == "POST" else step in path) else None

    with fault_proxy(s3.endpoint, fault) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        target = open_target(url("out"))
        with pytest.raises(StorageUnavailable if status == 503 else UsageError) as caught:
            write_all(target, [os.urandom(PART + 1) for _ in range(4)])
        target.discard()
    assert str(status) in caught.value.message
    says_what_to_do(caught.value)
    assert (s3.objects(), s3.uploads()) == ({}, [])


def test_no_such_bucket_wrong_address_and_no_server(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"There is no bucket s3://nowhere-here \(404 NoSuchBucket\)") as caught:
        check_writable("s3://nowhere-here/out.jsonl")
    says_what_to_do(caught.value)
    target = open_target("s3://nowhere-here/out.jsonl")
    target.write(b"x")
    with pytest.raises(UsageError, match="There is no bucket s3://nowhere-here"):
        target.commit()
    target.discard()
    check_writable(url("out.jsonl"))
    with fault_proxy(s3.endpoint, lambda *_: 403) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        check_writable(url("out.jsonl"))  # these credentials may not list; perhaps they may write
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{nobody.getsockname()[1]}")
        with pytest.raises(
            StorageUnavailable, match=r"s3://results gave no usable answer \(connection refused\)"
        ) as gone:
            check_writable(url("out.jsonl"))
    says_what_to_do(gone.value)


@pytest.mark.parametrize(
    "bad",
    ["s3://", "s3:///key", f"s3://{BUCKET}", f"s3://{BUCKET}/", "s3://b/a//b", "s3://b/../a", "s3://b/a\nb", "az://"],
)
def test_addresses_that_name_no_object(bad: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_target(bad)
    says_what_to_do(caught.value)


def test_logins_in_an_address_are_refused_and_not_repeated() -> None:
    with pytest.raises(UsageError, match="contains a login") as caught:
        open_target(f"s3://{KEY_ID}:{SECRET}@bucket/key")
    assert SECRET not in str(caught.value)


def test_stat_read_and_delete(s3: S3Server, tmp_path: Path) -> None:
    data = os.urandom(3 * PART)
    for place in (url("out"), str(tmp_path / "out")):
        assert stat(place) is None
        with pytest.raises(UsageError):
            next(read(place))
        target = open_target(place)
        target.write(data)
        target.commit()
        found = stat(place)
        assert found is not None
        assert found.size == len(data)
        assert b"".join(read(place)) == data
        assert b"".join(read(place, offset=PART + 1)) == data[PART + 1 :]
        assert b"".join(read(place, offset=len(data))) == b""
        delete(place)
        delete(place)
        assert stat(place) is None


def test_a_compressed_object(s3: S3Server) -> None:
    target = CompressedTarget(open_target(url("out.gz")), Compression.GZIP)
    target.write(b"text " * 1000)
    target.commit()
    assert gzip.decompress(s3.content("out.gz")) == b"text " * 1000
    assert s3.objects() == {"out.gz": target.tell()}


def says_what_to_do(error: ShoalError) -> None:
    text = str(error)
    assert error.message.endswith(".")
    assert error.remedy.endswith(".")
    assert "\n" not in text
    assert SECRET not in text
    assert KEY_ID not in text
    assert "http://" not in text
