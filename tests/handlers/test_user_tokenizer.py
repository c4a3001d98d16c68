"""The tokenizer for input formatters, which costs nothing until it is used."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path

from djl_python.handlers.user_tokenizer import UserTokenizer


def test_nothing_is_imported_before_it_is_used() -> None:
    code = (
        "import sys; from pathlib import Path; from djl_python.handlers.user_tokenizer import UserTokenizer; "
        "UserTokenizer(Path('gone'), trust_remote_code=False); print('transformers' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.stdout == "False\n", done.stderr


def test_a_users_tokenizer_can_be_copied_without_being_loaded() -> None:
    made = copy.copy(UserTokenizer(Path("gone"), trust_remote_code=False))
    assert isinstance(made, UserTokenizer)
