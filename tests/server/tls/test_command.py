"""`djl-serving tls`, and the pair that it makes."""

from __future__ import annotations

import ssl
import stat
from pathlib import Path

import pytest
from cryptography import x509

from djl_python.cli import main


def test_a_pair_whose_key_is_the_users_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = tmp_path / "made" / "here"
    assert main(["tls", "--directory", str(directory), "--name", "models.example", "--name", "10.0.0.7"]) == 0
    certificate, key = directory / "cert.pem", directory / "key.pem"
    assert f"--tls-cert {certificate} --tls-key {key}" in capsys.readouterr().out
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, key)
    made = x509.load_pem_x509_certificate(certificate.read_bytes())
    named = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {"localhost", "models.example"} <= set(named.get_values_for_type(x509.DNSName))
    addresses = [str(address) for address in named.get_values_for_type(x509.IPAddress)]
    assert addresses == ["127.0.0.1", "::1", "10.0.0.7"]


def test_no_file_is_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "cert.pem").write_text("mine")
    assert main(["tls", "--directory", str(tmp_path)]) == 1
    assert "cert.pem exists" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["cert.pem"]
    assert (tmp_path / "cert.pem").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--directory", "/dev/null/none"], 1, "can't be written: Not a directory"),
        (["--directory", "{}", "--name", "a b"], 1, "'a b': expected a host name"),
        (["--days", "0"], 2, "'0': expected days"),
    ],
)
def test_mistakes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, said: str
) -> None:
    try:
        ended = main(["tls", *(argument.format(tmp_path) for argument in arguments)])
    except SystemExit as exc:
        assert isinstance(exc.code, int)
        ended = exc.code
    assert (ended, said in capsys.readouterr().err) == (status, True)
    assert list(tmp_path.iterdir()) == []
