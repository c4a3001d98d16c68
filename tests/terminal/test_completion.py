"""The completion scripts in the shells that they are for, those that are installed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

COMPLETE = """
source {script}
COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); COMP_LINE="${{COMP_WORDS[*]}}"
_shtab_djl_serving; printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scripts")
    for shell in ("bash", "zsh", "fish"):
        command = [sys.executable, "-m", "djl_python", "completion", shell]
        (folder / shell).write_text(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return folder


def completed(scripts: Path, words: str, folder: Path) -> set[str]:
    """What bash offers for the last of these words."""
    script = COMPLETE.format(script=scripts / "bash", words=words)
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, cwd=folder)
    return set(done.stdout.split())


def test_bash_completes_commands_options_choices_and_directories(scripts: Path, tmp_path: Path) -> None:
    (tmp_path / "my_model").mkdir()
    assert completed(scripts, "djl-serving d", tmp_path) == {"doctor"}
    assert completed(scripts, "djl-serving se", tmp_path) == {"serve"}
    assert completed(scripts, "djl-serving serve --log-f", tmp_path) == {"--log-format"}
    assert completed(scripts, "djl-serving chat --temp", tmp_path) == {"--temperature"}
    assert completed(scripts, "djl-serving --log-format ''", tmp_path) == {"text", "json"}
    assert completed(scripts, "djl-serving run my", tmp_path) == {"my_model"}
    assert completed(scripts, "djl-serving completion ''", tmp_path) == {"bash", "zsh", "fish"}


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_takes_its_script(scripts: Path) -> None:
    program = f'autoload -U compinit; compinit -u; eval "$(<{scripts / "zsh"})"; (( $+_comps[djl-serving] ))'
    subprocess.run(["zsh", "-f", "-c", program], check=True)


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes(scripts: Path, tmp_path: Path) -> None:
    program = f"source {scripts / 'fish'}; complete -C 'djl-serving chat --temp'; complete -C 'djl-serving doc'"
    command = ["fish", "--no-config", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert {line.split("\t")[0] for line in done.stdout.splitlines()} == {"--temperature", "doctor"}
