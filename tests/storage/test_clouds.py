"""Where credentials and endpoints of each cloud come from; the calls of Google's and Azure's stores, on loopback."""

from __future__ import annotations

import base64
import os
import sys
from pathlib import Path

import pytest

from shoal.errors import ShoalError, UsageError
from shoal.storage import check_writable, open_target, read, stat
from shoal.storage.credentials import store_options
from tests.support.object_store import BUCKET, KEY_ID, PART_BYTES, SECRET, AzureServer, S3Server, fault_proxy

DATA = os.urandom(2 * PART_BYTES + 1)


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No credentials anywhere, and nobody outside this machine is asked for some."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "GOOGLE_", "AZURE_", "CLOUDSDK_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:9")
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("shoal.storage.credentials.METADATA_SERVICE", "http://127.0.0.1:9")
    monkeypatch.setattr("shoal.storage.objects.MAX_RETRIES", 1)
    monkeypatch.setattr("shoal.storage.objects.PART_BYTES", PART_BYTES)


def is_one_sentence(error: ShoalError) -> bool:
    text = str(error)
    return "\n" not in text and error.message.endswith(".") and error.remedy.endswith(".") and SECRET not in text


@pytest.mark.parametrize(
    ("url", "words", "remedy"),
    [
        ("s3://bucket/key", "no credentials for S3", "AWS_ACCESS_KEY_ID"),
        ("gs://bucket/key", "no credentials for Google Cloud Storage", "GOOGLE_APPLICATION_CREDENTIALS"),
        ("az://bucket/key", "storage account of Azure is not known", "AZURE_STORAGE_ACCOUNT_NAME"),
    ],
)
def test_without_credentials_it_is_said_at_once(url: str, words: str, remedy: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        open_target(url)
    assert is_one_sentence(caught.value)
    assert remedy in caught.value.remedy


def test_a_machine_without_a_role(monkeypatch: pytest.MonkeyPatch) -> None:
    with fault_proxy("http://127.0.0.1:9", lambda *_: 403) as metadata:
        monkeypatch.setenv("AWS_METADATA_ENDPOINT", metadata.endpoint)
        target = open_target("s3://bucket/key")
        with pytest.raises(UsageError, match="metadata service of this machine gives no credentials") as caught:
            target.commit()
        assert metadata.requests
    assert is_one_sentence(caught.value)


def test_an_azure_account_without_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "shop")
    with pytest.raises(UsageError, match="no credentials for Azure") as caught:
        open_target("az://bucket/key")
    assert is_one_sentence(caught.value)


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(UsageError, match=r"pip install 'shoal\[s3\]'"):
        open_target("s3://bucket/key")


CREDENTIALS = f"""
[default]
aws_access_key_id = {KEY_ID}
aws_secret_access_key = {SECRET}%percent
[lake]
aws_access_key_id = LAKE
aws_secret_access_key = {SECRET}
aws_session_token = token
"""
CONFIG = """
[default]
region = eu-central-1
[profile lake]
region = eu-west-1
endpoint_url = http://127.0.0.1:9000
[profile corporate]
sso_session = office
sso_account_id = 1
"""


def test_profiles_of_aws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / ".aws"
    folder.mkdir()
    (folder / "credentials").write_text(CREDENTIALS)
    (folder / "config").write_text(CONFIG)
    found = store_options("s3")
    assert found["config"] == {
        "access_key_id": KEY_ID,
        "secret_access_key": f"{SECRET}%percent",
        "region": "eu-central-1",
    }
    assert found["client_options"] == {}
    monkeypatch.setenv("AWS_PROFILE", "lake")
    found = store_options("s3")
    assert (found["config"]["endpoint"], found["config"]["region"]) == ("http://127.0.0.1:9000", "eu-west-1")
    assert (found["config"]["access_key_id"], found["config"]["session_token"]) == ("LAKE", "token")
    assert found["client_options"] == {"allow_http": True}
    monkeypatch.setenv("AWS_REGION", "us-west-2")
    assert "region" not in store_options("s3")["config"]  # obstore reads the environment itself
    monkeypatch.setenv("AWS_PROFILE", "corporate")
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(UsageError, match="which needs the package boto3"):
        store_options("s3")
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(UsageError, match="There is no AWS profile 'nobody'"):
        store_options("s3")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "from-the-environment")
    assert "access_key_id" not in store_options("s3")["config"]
    (folder / "credentials").write_text("aws_secret_access_key without a section")
    with pytest.raises(UsageError, match="cannot be read") as caught:
        store_options("s3")
    assert is_one_sentence(caught.value)


def test_a_profile_with_a_process_asks_boto3(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    for name, text in (
        ("good", f'{{"Version":1,"AccessKeyId":"{KEY_ID}","SecretAccessKey":"{SECRET}"}}'),
        ("bad", "{}"),
    ):
        (tmp_path / name).write_text(text)
    sections = [f"[profile {name}]\ncredential_process = cat {tmp_path / name}\n" for name in ("good", "bad")]
    (tmp_path / "config").write_text("".join(sections))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_PROFILE", "good")
    target = open_target(f"s3://{BUCKET}/out")
    target.write(b"by a profile")
    target.commit()
    assert s3.content("out") == b"by a profile"
    monkeypatch.setenv("AWS_PROFILE", "bad")
    with pytest.raises(UsageError, match="'bad' gives no credentials") as caught:
        open_target(f"s3://{BUCKET}/out")
    assert is_one_sentence(caught.value)


def test_google(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its XML calls are those of S3; the token is Google's."""
    url = f"gs://{BUCKET}/deep/out.bin"
    monkeypatch.setenv("GOOGLE_BEARER_TOKEN", SECRET)
    with fault_proxy(s3.endpoint, lambda *_: None) as proxy:
        monkeypatch.setenv("GOOGLE_BASE_URL", proxy.endpoint)
        check_writable(url)
        with pytest.raises(UsageError, match="There is no bucket gs://nowhere-here") as caught:
            check_writable("gs://nowhere-here/out.bin")
        assert is_one_sentence(caught.value)
        target = open_target(url)
        target.write(DATA)
        assert (s3.objects(), s3.uploads()) == ({}, ["deep/out.bin"])
        target.commit()
        found = stat(url)
        assert found is not None
        assert found.size == len(DATA)
        assert s3.content("deep/out.bin") == DATA == b"".join(read(url))
        target = open_target(f"{url}.2")
        target.write(DATA)
        target.discard()
    assert (list(s3.objects()), s3.uploads()) == (["deep/out.bin"], [])


def test_the_files_of_google(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    login = tmp_path / ".config" / "gcloud" / "application_default_credentials.json"
    login.parent.mkdir(parents=True)
    login.write_text("{}")
    assert store_options("gs")["config"] == {"application_credentials": str(login)}
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "127.0.0.1:4443")
    found = store_options("gs")
    assert found["config"] == {"base_url": "http://127.0.0.1:4443", "skip_signature": True}
    assert found["client_options"] == {"allow_http": True}


def test_azure(monkeypatch: pytest.MonkeyPatch) -> None:
    server = AzureServer()
    key = base64.b64encode(SECRET.encode()).decode()
    monkeypatch.setenv(
        "AZURE_STORAGE_CONNECTION_STRING",
        f"DefaultEndpointsProtocol=http;AccountName=shop;AccountKey={key};BlobEndpoint={server.endpoint}",
    )
    url = f"az://{BUCKET}/deep/out.bin"
    blob = f"{BUCKET}/deep/out.bin"
    try:
        check_writable(url)
        with pytest.raises(UsageError, match="There is no bucket az://nowhere-here") as caught:
            check_writable("az://nowhere-here/out.bin")
        assert is_one_sentence(caught.value)
        target = open_target(url)
        target.write(DATA)
        assert server.blobs == {}
        target.commit()
        assert server.blobs == {blob: DATA}
        assert server.blocks == {}
        found = stat(url)
        assert found is not None
        assert found.size == len(DATA)
        assert b"".join(read(url)) == DATA
        assert stat(f"{url}.2") is None
        target = open_target(f"{url}.2")
        target.write(DATA)
        target.discard()
        assert server.blobs.keys() == {blob}
        assert all(signature.startswith("SharedKey shop:") for signature in server.signatures)
    finally:
        server.stop()
