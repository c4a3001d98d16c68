"""Certificates that sign themselves, for tests of https."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from djl_python.config import Address
from djl_python.server.tls.self_signed import make_pair


@dataclass(frozen=True)
class Pair:
    """A certificate and its key."""

    certificate: Path
    key: Path

    @classmethod
    def made(cls, folder: Path, *names: str) -> Pair:
        """A new one, in a folder of its own."""
        folder.mkdir()
        pair = cls(folder / "cert.pem", folder / "key.pem")
        make_pair(pair.certificate, pair.key, names or ["localhost", "127.0.0.1", "::1"], days=2)
        return pair

    @property
    def settings(self) -> dict[str, Any]:
        """Those of a server that speaks TLS with it."""
        return {
            "inference_address": Address(secure=True),
            "certificate_file": str(self.certificate),
            "private_key_file": str(self.key),
        }

    def trusted(self) -> ssl.SSLContext:
        """A client's context that trusts it alone."""
        return ssl.create_default_context(cafile=str(self.certificate))
