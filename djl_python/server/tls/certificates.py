"""The server's certificate, and the check of its clients' certificates. Runs in the front end's event loop.

Renewed files are noticed when a connection comes. Open connections keep their certificate.
"""

from __future__ import annotations

import logging
import ssl
import time
from pathlib import Path
from typing import Final

from ...config import ServerConfig
from ...core.errors import ConfigError

log = logging.getLogger(__name__)

#: How often the files are looked at, at most.
LOOK_EVERY_S: Final = 1.0

#: Identifies the version of a file.
_Stamp = tuple[int, int, int] | None


class Certificates:
    """The files of certificates, and the TLS context made of them.

    Raises:
        ConfigError: a file can't be read, or the key is not the certificate's.
    """

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self._paths = [
            Path(path) for path in (config.certificate_file, config.private_key_file, config.client_ca_file) if path
        ]
        self._stamps = self._look()
        self._looked_at = time.monotonic()
        self._context = _context(config)

    def context(self) -> ssl.SSLContext:
        """The TLS context of new connections. Faulty files are logged, and the previous context stays."""
        now = time.monotonic()
        if now - self._looked_at >= LOOK_EVERY_S:
            self._looked_at = now
            if (stamps := self._look()) != self._stamps:
                self._stamps = stamps
                self._renew()
        return self._context

    def _renew(self) -> None:
        try:
            self._context = _context(self._config)
        except ConfigError as error:
            log.error("%s; new connections get the certificate that was there before", error.message)
        else:
            log.info("new connections get the renewed certificate of %s", self._config.certificate_file)

    def _look(self) -> list[_Stamp]:
        return [_stamp(path) for path in self._paths]


def certificates(config: ServerConfig) -> Certificates | None:
    """Those of the server; None where no address is https.

    Raises:
        ConfigError: a file can't be read, or the key is not the certificate's.
    """
    addresses = (config.inference_address, config.management_address)
    return Certificates(config) if any(address is not None and address.secure for address in addresses) else None


def _stamp(path: Path) -> _Stamp:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size


def _context(config: ServerConfig) -> ssl.SSLContext:
    context = context_with(("certificate_file", config.certificate_file), ("private_key_file", config.private_key_file))
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    if authorities := config.client_ca_file:
        check_readable("client_ca_file", authorities)
        try:
            context.load_verify_locations(authorities)
        except ssl.SSLError as exc:
            raise ConfigError(f"client_ca_file={authorities}: expected certificates in PEM ({_reason(exc)})") from None
        required = config.client_certificates == "required"
        context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    return context


def context_with(certificate: tuple[str, str], key: tuple[str, str]) -> ssl.SSLContext:
    """A server's context with a certificate and its private key.

    Args:
        certificate: the name of its setting, and the file's path.
        key: the same; without a path, the key is in the certificate's file.

    Raises:
        ConfigError: a file can't be read, or the key is not the certificate's.
    """
    for name, path in (certificate, key):
        if path:
            check_readable(name, path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # Without a password OpenSSL would ask for one on the terminal.
        context.load_cert_chain(certificate[1], key[1] or None, password=lambda: "")
    except (ssl.SSLError, ValueError) as exc:
        raise ConfigError(
            f"{certificate[0]}={certificate[1]}, {key[0]}={key[1] or certificate[1]}: "
            f"expected a certificate and its private key, in PEM and without a password ({_reason(exc)})"
        ) from None
    return context


def check_readable(name: str, path: str) -> None:
    """Raise ConfigError if the file of a setting can't be read."""
    try:
        with Path(path).open("rb"):
            pass
    except OSError as exc:
        raise ConfigError(f"{name}={path} can't be read: {exc.strerror}") from None


def _reason(error: Exception) -> str:
    """OpenSSL's reason, in words."""
    reason = error.reason if isinstance(error, ssl.SSLError) else None
    return reason.lower().replace("_", " ") if reason else "no certificate or no key in it"
