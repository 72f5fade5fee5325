"""Options and credentials of object stores: from the environment and the files that each cloud's own tools use.

obstore reads most variables itself. This module adds what it does not read (the profiles of AWS, the connection string
of Azure, emulators), and finds out early when there are no credentials, which would else be minutes of retries.
"""

from __future__ import annotations

import configparser
import importlib
import os
import socket
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from shoal.errors import UsageError

Environment = Mapping[str, str]
METADATA_SERVICE = "http://169.254.169.254"
METADATA_SECONDS = 1.0
_S3_KEYS = {
    "access_key_id": "aws_access_key_id",
    "secret_access_key": "aws_secret_access_key",
    "session_token": "aws_session_token",
}
# A profile with one of these gets its keys from elsewhere, which needs the AWS library.
_S3_INDIRECT = ("sso_session", "sso_start_url", "role_arn", "credential_process", "login_session")
_S3_OWN_SOURCES = (
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_SKIP_SIGNATURE",
)
_GOOGLE_SOURCES = (
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_BEARER_TOKEN",
    "GOOGLE_SERVICE_ACCOUNT",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
    "GOOGLE_SERVICE_ACCOUNT_PATH",
    "GOOGLE_SKIP_SIGNATURE",
)
_AZURE_SOURCES = (
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_ACCESS_KEY",
    "AZURE_STORAGE_MASTER_KEY",
    "AZURE_STORAGE_SAS_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_STORAGE_TOKEN",
    "AZURE_STORAGE_CLIENT_SECRET",
    "AZURE_CLIENT_SECRET",
    "AZURE_FEDERATED_TOKEN_FILE",
    "AZURE_MSI_ENDPOINT",
    "AZURE_IDENTITY_ENDPOINT",
    "IDENTITY_ENDPOINT",
    "AZURE_USE_AZURE_CLI",
    "AZURE_SKIP_SIGNATURE",
    "AZURE_STORAGE_USE_EMULATOR",
)
_CONNECTION_STRING = {
    "AccountName": "account_name",
    "AccountKey": "account_key",
    "SharedAccessSignature": "sas_key",
    "BlobEndpoint": "endpoint",
}


def store_options(scheme: str) -> dict[str, Any]:
    """The keyword arguments of the obstore class of a scheme. Raises UsageError when there are no credentials."""
    environment = os.environ
    match scheme:
        case "s3":
            config, more, endpoint = _s3(environment)
        case "gs":
            config, more, endpoint = _google(environment)
        case _:
            config, more, endpoint = _azure(environment)
    return {"config": config, "client_options": {"allow_http": True} if _is_plain_http(endpoint) else {}, **more}


def _s3(environment: Environment) -> tuple[dict[str, Any], dict[str, Any], str]:
    profile = environment.get("AWS_PROFILE", "default")
    settings = _s3_profile(environment, profile)
    if not settings and "AWS_PROFILE" in environment and "AWS_ACCESS_KEY_ID" not in environment:
        raise UsageError(f"There is no AWS profile {profile!r}.", remedy="Correct AWS_PROFILE, or run `aws configure`.")
    endpoint = (
        environment.get("AWS_ENDPOINT_URL_S3")
        or environment.get("AWS_ENDPOINT_URL")
        or environment.get("AWS_ENDPOINT")
        or settings.get("endpoint_url", "")
    )
    config: dict[str, Any] = {"endpoint": endpoint} if endpoint else {}
    if "AWS_REGION" not in environment and "AWS_DEFAULT_REGION" not in environment and "region" in settings:
        config["region"] = settings["region"]
    if "AWS_ACCESS_KEY_ID" in environment:
        return config, {}, endpoint
    if _S3_KEYS["access_key_id"] in settings:
        config |= {option: settings[name] for option, name in _S3_KEYS.items() if name in settings}
        return config, {}, endpoint
    if any(name in settings for name in _S3_INDIRECT):
        return config, {"credential_provider": _boto3_credentials(profile)}, endpoint
    if not any(environment.get(name) for name in _S3_OWN_SOURCES) and (
        environment.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true"
        or not _answers(environment.get("AWS_METADATA_ENDPOINT", METADATA_SERVICE))
    ):
        raise UsageError(
            "There are no credentials for S3.",
            remedy="Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or run `aws configure`.",
        )
    return config, {}, endpoint


def _s3_profile(environment: Environment, profile: str) -> dict[str, str]:
    """What the shared files of AWS say about a profile. Those of the credentials file have precedence."""
    home = Path(environment.get("HOME", "~")).expanduser() / ".aws"
    found: dict[str, str] = {}
    for variable, name, section in (
        ("AWS_CONFIG_FILE", "config", profile if profile == "default" else f"profile {profile}"),
        ("AWS_SHARED_CREDENTIALS_FILE", "credentials", profile),
    ):
        path = Path(environment.get(variable) or home / name).expanduser()
        # Values may contain a percent sign; names of profiles are case-sensitive, those of settings are not.
        reader = configparser.ConfigParser(interpolation=None, strict=False, default_section="")
        try:
            reader.read(path, encoding="utf-8")
        except (configparser.Error, OSError, UnicodeDecodeError):
            raise UsageError(
                f"The file {path} cannot be read.", remedy=f"Correct it, or set {variable} to another file."
            ) from None
        if reader.has_section(section):
            found |= dict(reader[section])
    return found


@cache
def _boto3_credentials(profile: str) -> Any:
    """A provider that boto3 keeps fresh; asked for once, because a profile may start a process or ask a server."""
    try:
        session = importlib.import_module("boto3").Session(profile_name=profile)
        provider = importlib.import_module("obstore.auth.boto3").Boto3CredentialProvider
    except ImportError:
        raise UsageError(
            f"The AWS profile {profile!r} gets its keys by SSO, a role or a process, which needs the package boto3.",
            remedy="Install it with `pip install boto3`, or run `aws configure export-credentials --format env`.",
        ) from None
    try:
        return provider(session)
    except Exception as problem:  # of many kinds, and with texts that may contain secrets
        raise UsageError(
            f"The AWS profile {profile!r} gives no credentials ({type(problem).__name__}).",
            remedy=f"Check it with `aws sts get-caller-identity --profile {profile}`.",
        ) from None


def _google(environment: Environment) -> tuple[dict[str, Any], dict[str, Any], str]:
    emulator = environment.get("STORAGE_EMULATOR_HOST", "")
    if emulator:
        base = emulator if "://" in emulator else f"http://{emulator}"
        return {"base_url": base, "skip_signature": True}, {}, base
    folder = environment.get("CLOUDSDK_CONFIG") or Path(environment.get("HOME", "~")).expanduser() / ".config/gcloud"
    login = Path(folder) / "application_default_credentials.json"
    config: dict[str, Any] = {}
    if not any(environment.get(name) for name in _GOOGLE_SOURCES):
        if login.is_file():
            config["application_credentials"] = str(login)
        elif not _answers(f"http://{environment.get('GCE_METADATA_HOST', 'metadata.google.internal')}"):
            raise UsageError(
                "There are no credentials for Google Cloud Storage.",
                remedy="Set GOOGLE_APPLICATION_CREDENTIALS, or run `gcloud auth application-default login`.",
            )
    return config, {}, environment.get("GOOGLE_BASE_URL", "")


def _azure(environment: Environment) -> tuple[dict[str, Any], dict[str, Any], str]:
    config = {
        option: environment[name]
        for name, option in (("AZURE_STORAGE_ACCOUNT", "account_name"), ("AZURE_STORAGE_KEY", "account_key"))
        if environment.get(name)
    }
    pairs = environment.get("AZURE_STORAGE_CONNECTION_STRING", "").split(";")
    said = {name.strip(): value for name, equals, value in (pair.partition("=") for pair in pairs) if equals}
    config |= {option: said[name] for name, option in _CONNECTION_STRING.items() if said.get(name)}
    endpoint = (
        config.get("endpoint") or environment.get("AZURE_STORAGE_ENDPOINT") or environment.get("AZURE_ENDPOINT", "")
    )
    emulated = environment.get("AZURE_STORAGE_USE_EMULATOR", "").lower() == "true"
    if not emulated and "account_name" not in config and not environment.get("AZURE_STORAGE_ACCOUNT_NAME"):
        raise UsageError(
            "The storage account of Azure is not known.",
            remedy="Set AZURE_STORAGE_ACCOUNT_NAME, or AZURE_STORAGE_CONNECTION_STRING.",
        )
    known = config.keys() & {"account_key", "sas_key"} or any(environment.get(name) for name in _AZURE_SOURCES)
    if not known and not _answers(METADATA_SERVICE):
        raise UsageError(
            "There are no credentials for Azure.",
            remedy="Set AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN, or AZURE_USE_AZURE_CLI=true after "
            "`az login`.",
        )
    return config, {}, "http://" if emulated else endpoint


def _answers(service: str) -> bool:
    """Whether the metadata service of a cloud's machine can be reached."""
    place = urlsplit(service)
    try:
        socket.create_connection((place.hostname or "", place.port or 80), METADATA_SECONDS).close()
    except OSError:
        return False
    return True


def _is_plain_http(endpoint: str) -> bool:
    return endpoint.lower().startswith("http://")
