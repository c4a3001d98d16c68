from __future__ import annotations

from pathlib import Path

import pytest

from djl_python.cli import main
from djl_python.core.access.api_key import digest
from djl_python.core.access.scopes import Scope
from djl_python.server.keys.key_file import read_keys


def test_a_key_from_new_to_revoked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "keys.jsonl"
    options = ["--models", "a", "b", "--tokens-per-minute", "10", "--expires-in-days", "30"]
    assert main(["keys", "new", "-f", str(path), "--name", "ci", "--scopes", "infer", "metrics", *options]) == 0
    told = capsys.readouterr()
    secret = told.out.strip()
    [key] = read_keys(path)
    assert key.sha256 == digest(secret)
    assert (key.name, key.scopes, key.models, key.tokens_per_minute) == (
        *("ci", (Scope.INFER, Scope.METRICS), ("a", "b"), 10),
    )
    assert key.created_at is not None and key.expires_at is not None
    assert (key.expires_at - key.created_at).days in (29, 30)
    assert secret not in path.read_text() and secret not in told.err
    assert main(["keys", "new", "-f", str(path), "--name", "other"]) == 0
    capsys.readouterr()
    assert main(["keys", "list", "-f", str(path)]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{key.sha256[:12]}  ci  infer,metrics  models=a,b  tokens_per_minute=10  expires=")
    assert second.endswith("  other  infer")
    assert main(["keys", "revoke", "-f", str(path), second.split()[0]]) == 0
    assert main(["keys", "revoke", "-f", str(path), "ci"]) == 0
    assert read_keys(path) == ()
    assert main(["keys", "revoke", "-f", str(path), "ci"]) == 1


def test_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "keys.jsonl"
    assert main(["keys", "new", "-f", str(path), "--name", "a b"]) == 1
    assert "name" in capsys.readouterr().err
    assert not path.exists()
    assert main(["keys", "list"]) == 1
    assert "no file of keys is named: expected --file FILE" in capsys.readouterr().err
    monkeypatch.setenv("SERVING_API_KEYS", str(path))
    assert main(["keys", "new", "--name", "a"]) == 0
    assert len(read_keys(path)) == 1
