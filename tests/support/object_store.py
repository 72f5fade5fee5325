"""An S3 server on loopback (moto's), with its own listing as the witness, and a proxy that makes its requests fail."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from email.utils import formatdate
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

BUCKET = "results"
# S3 itself wants parts of 5 MiB; smaller ones keep the tests small.
PART_BYTES = 256 << 10
# Given to the client in the environment; must appear nowhere else.
SECRET = "wJalrXUtnFEMI-a-secret-of-this-test"
KEY_ID = "AKIDOFTHISTEST000000"


class S3Server:
    """`endpoint` is its address; `client` talks to it as an independent witness."""

    def __init__(self) -> None:
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._server = import_module("moto.server").ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        vars(import_module("moto.s3.models"))["S3_UPLOAD_PART_MIN_SIZE"] = PART_BYTES
        self._server.start()
        host, port = self._server.get_host_and_port()
        self.endpoint = f"http://{host}:{port}"
        self.client: Any = import_module("boto3").client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id="witness",
            aws_secret_access_key="witness",
        )
        self.client.create_bucket(Bucket=BUCKET)

    def environment(self, endpoint: str | None = None) -> dict[str, str]:
        """What a client needs to write to it. Nothing outside this machine may be asked for credentials."""
        return {
            "AWS_ENDPOINT_URL": endpoint or self.endpoint,
            "AWS_ACCESS_KEY_ID": KEY_ID,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def objects(self) -> dict[str, int]:
        """The visible objects and their sizes."""
        found = self.client.list_objects_v2(Bucket=BUCKET).get("Contents", [])
        return {entry["Key"]: entry["Size"] for entry in found}

    def uploads(self) -> list[str]:
        """The keys of uploads that have begun and are neither complete nor aborted."""
        return [entry["Key"] for entry in self.client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])]

    def content(self, key: str) -> bytes:
        body: bytes = self.client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
        return body

    def clear(self) -> None:
        for key in self.objects():
            self.client.delete_object(Bucket=BUCKET, Key=key)
        for entry in self.client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", []):
            self.client.abort_multipart_upload(Bucket=BUCKET, Key=entry["Key"], UploadId=entry["UploadId"])

    def stop(self) -> None:
        self._server.stop()


# Takes method and path; a status to answer with instead, 0 to cut the connection, None to pass the request on.
Fault = Callable[[str, str], int | None]


class _Server(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """A client may leave in the middle of a request."""


class FaultProxy:
    """Passes requests on to `endpoint`, except where `fault` says otherwise; `requests` is its log."""

    def __init__(self, endpoint: str, fault: Fault) -> None:
        self.requests: list[tuple[str, str]] = []
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                proxy.requests.append((self.command, self.path))
                status = fault(self.command, self.path)
                if status == 0:
                    self.close_connection = True
                    return
                if status is None:
                    target = HTTPConnection(endpoint.removeprefix("http://"))
                    target.request(self.command, self.path, body, dict(self.headers))
                    response = target.getresponse()
                    status, data = response.status, response.read()
                    headers = [pair for pair in response.getheaders() if pair[0].lower() not in _OWN_HEADERS]
                    size = response.getheader("Content-Length") if self.command == "HEAD" else None
                    target.close()
                else:
                    data, headers, size = b"<Error><Code>SlowDown</Code></Error>" if status >= 500 else b"", [], None
                    if status == 403:
                        data = b"<Error><Code>AccessDenied</Code></Error>"
                self.send_response(status)
                for name, value in headers:
                    self.send_header(name, value)
                self.send_header("Content-Length", size or str(len(data)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(data)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = answer

            def log_message(self, *_: object) -> None:
                pass

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


_OWN_HEADERS = {"content-length", "transfer-encoding", "connection", "date", "server"}


@contextmanager
def fault_proxy(endpoint: str, fault: Fault) -> Iterator[FaultProxy]:
    proxy = FaultProxy(endpoint, fault)
    try:
        yield proxy
    finally:
        proxy.stop()


class AzureServer:
    """The few calls of Azure's blob service that an upload needs: blobs, blocks, block lists, and the listing."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.blocks: dict[str, dict[str, bytes]] = {}
        self.signatures: list[str] = []
        stand_in = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                place = urlsplit(self.path)
                query = dict(parse_qsl(place.query))
                stand_in.signatures.append(self.headers.get("Authorization", ""))
                status, data = stand_in.handle(self.command, unquote(place.path).lstrip("/"), query, body)
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.send_header("ETag", f'"{hash(data)}"')
                self.send_header("Last-Modified", formatdate(usegmt=True))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(data)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = answer

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def handle(self, method: str, name: str, query: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        if not name.startswith(f"{BUCKET}"):
            return 404, b"<Error><Code>ContainerNotFound</Code></Error>"
        match method, query.get("comp"):
            case "PUT", "block":
                self.blocks.setdefault(name, {})[query["blockid"]] = body
                return 201, b""
            case "PUT", "blocklist":
                parts = re.findall(rb"<Uncommitted>(.*?)</Uncommitted>", body)
                waiting = self.blocks.pop(name)
                self.blobs[name] = b"".join(waiting[part.decode()] for part in parts)
                return 201, b""
            case "PUT", None:
                self.blobs[name] = body
                return 201, b""
            case "GET", "list":
                return 200, b"<EnumerationResults><Blobs/></EnumerationResults>"
        if name not in self.blobs:
            return 404, b"<Error><Code>BlobNotFound</Code></Error>"
        return 200, self.blobs[name]

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
