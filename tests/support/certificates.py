"""A certificate for names and addresses on loopback, and the trust in it."""

import shutil
import ssl
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.support import MissingPartError

NAMES: Final = ("shop.test", "*.shop.test", "localhost", "127.0.0.1", "::1")


class Certificate:
    """Self-signed, for a server on these names: `server` is its side of TLS, `path` what a client has to trust."""

    def __init__(self, folder: Path, names: Sequence[str] = NAMES) -> None:
        openssl = shutil.which("openssl")
        if openssl is None:
            raise MissingPartError("openssl is not installed")
        self.path, self.key = folder / "certificate.pem", folder / "key.pem"
        kinds = ["IP" if name[-1].isdigit() else "DNS" for name in names]
        alternatives = ",".join(f"{kind}:{name}" for kind, name in zip(kinds, names, strict=True))
        subprocess.run(
            [
                *(openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=shop.test"),
                *("-addext", f"subjectAltName={alternatives}", "-keyout", str(self.key), "-out", str(self.path)),
            ],
            check=True,
            capture_output=True,
        )
        self.server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.server.load_cert_chain(self.path, self.key)

    def trust(self, context: ssl.SSLContext) -> None:
        """Make a client's context accept it."""
        context.load_verify_locations(self.path)
