"""A certificate that signs itself, for tests and for machines without a name. Runs in the command's own process."""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from ...core.errors import ConfigError

#: A host name, or one with a first part that stands for any.
_HOST_NAME: Final = re.compile(r"(?:\*\.)?[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?")


def make_pair(certificate_file: Path, private_key_file: Path, names: Iterable[str], days: int) -> None:
    """Write a certificate for these host names and IP addresses, and its private key, which only the user may read.

    Raises:
        ConfigError: a file exists or can't be written, a name is none, or the `tls` extra is not installed.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as exc:
        raise ConfigError("djl-serving tls needs the package cryptography: pip install 'djl-serving[tls]'") from exc
    alternatives: list[x509.GeneralName] = []
    for name in dict.fromkeys(names):
        try:
            alternatives.append(x509.IPAddress(ipaddress.ip_address(name)))
        except ValueError:
            if not _HOST_NAME.fullmatch(name):
                raise ConfigError(f"{name!r}: expected a host name in ASCII, or an IP address") from None
            alternatives.append(x509.DNSName(name))
    for path in (certificate_file, private_key_file):
        if path.exists():
            raise ConfigError(f"{path} exists: remove it, or name another directory with --directory")
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "djl-serving, self-signed")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))  # clocks differ
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)  # clients take it as an authority
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    _write(private_key_file, private, 0o600)
    _write(certificate_file, certificate.public_bytes(pem), 0o644)


def _write(path: Path, content: bytes, mode: int) -> None:
    """Write a new file with its final permissions from the beginning; make its directory where that is missing."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
    except OSError as exc:
        raise ConfigError(f"{path} can't be written: {exc.strerror}") from None
