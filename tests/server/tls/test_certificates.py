"""Certificates as they are read, and read again."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from djl_python.config import Address, ServerConfig
from djl_python.core.errors import ConfigError
from djl_python.server.tls import certificates as module
from djl_python.server.tls.certificates import Certificates, certificates
from tests.certificates import Pair


def copied(pair: Pair, folder: Path) -> Pair:
    shutil.copytree(pair.certificate.parent, folder)
    return Pair(folder / "cert.pem", folder / "key.pem")


def test_there_are_none_where_no_address_is_https(pair: Pair) -> None:
    plain: dict[str, Any] = {**pair.settings, "inference_address": Address()}
    assert certificates(ServerConfig(**plain)) is None
    assert certificates(ServerConfig(**plain, management_address=Address(port=1, secure=True))) is not None


def test_files_are_read_again_when_they_change(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "LOOK_EVERY_S", 0)
    caplog.set_level("INFO")
    mine, other = copied(pair, tmp_path / "mine"), Pair.made(tmp_path / "other")
    made = Certificates(ServerConfig(**mine.settings))
    first = made.context()
    assert made.context() is first
    shutil.copy(other.certificate, mine.certificate)  # half renewed
    assert made.context() is first
    assert made.context() is first
    (told,) = caplog.messages
    assert "key values mismatch" in told and "the certificate that was there before" in told
    shutil.copy(other.key, mine.key)
    assert made.context() is not first
    assert caplog.messages[1:] == [f"new connections get the renewed certificate of {mine.certificate}"]
    mine.key.unlink()
    second = made.context()
    assert made.context() is second
    assert "private_key_file" in caplog.messages[-1] and "No such file" in caplog.messages[-1]


def test_files_are_looked_at_once_in_a_while(pair: Pair, tmp_path: Path) -> None:
    mine = copied(pair, tmp_path / "mine")
    made = Certificates(ServerConfig(**mine.settings))
    first = made.context()
    mine.certificate.unlink()
    assert made.context() is first  # and no message: nobody looked


def test_key_and_certificate_may_be_one_file(pair: Pair, tmp_path: Path) -> None:
    both = tmp_path / "both.pem"
    both.write_bytes(pair.key.read_bytes() + pair.certificate.read_bytes())
    Certificates(ServerConfig(inference_address=Address(secure=True), certificate_file=str(both)))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("certificate_file", None, "can't be read: No such file"),
        ("certificate_file", b"no PEM", "expected a certificate and its private key, in PEM"),
        ("private_key_file", b"", "expected a certificate and its private key, in PEM"),
        ("client_ca_file", b"no PEM", "expected certificates in PEM"),
    ],
)
def test_files_that_are_wrong(pair: Pair, tmp_path: Path, name: str, content: bytes | None, said: str) -> None:
    path = tmp_path / "file"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=said) as raised:
        Certificates(ServerConfig(**{**pair.settings, name: str(path)}))
    assert f"{name}={path}" in raised.value.message


def test_a_key_with_a_password_is_refused_and_nobody_is_asked_for_it(pair: Pair, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(pair.key.read_bytes(), None)
    locked = tmp_path / "locked.pem"
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(ConfigError, match="without a password"):
        Certificates(ServerConfig(**{**pair.settings, "private_key_file": str(locked)}))
