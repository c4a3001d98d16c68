"""Which imports are sure to fail, held against what Python says of them."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from djl_python.usercode.imports import import_faults

GONE = "import nosuchmodule\n"


def faults_of(directory: Path, source: str) -> list[str]:
    file = directory / "model.py"
    file.write_text(source)
    return import_faults(file, ast.parse(source), directory)


def runs(directory: Path) -> bool:
    """Whether the file runs, imported as a worker imports it."""
    code = f"import sys; sys.path.insert(0, {str(directory)!r}); import model"
    return subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, cwd="/", timeout=30).returncode == 0


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (GONE, "model.py:1: there is no module 'nosuchmodule': it is not installed, not in "),
        ("import os, nosuchmodule.part as x", "model.py:1: there is no module 'nosuchmodule'"),
        ("import os\nfrom nosuchmodule.x import y", "model.py:2: there is no module 'nosuchmodule'"),
        ("from . import other", "model.py:1: a relative import"),
        ("import numpyy", "; did you mean numpy?"),
        ("import helpper", "; did you mean helper?"),
        (
            "from djl_python.input import Input",
            "there is no module 'djl_python.input'; did you mean djl_python.inputs?",
        ),
        (
            "from djl_python.rolling_batch.vllm_rolling_batch import VLLMRollingBatch",
            "there is no module 'djl_python.rolling_batch.vllm_rolling_batch'; it is a part of LMI's own handlers",
        ),
        (
            "from djl_python.session_utils import get_session",
            "there is no module 'djl_python.session_utils'; it is a part of LMI's own handlers",
        ),
        (
            "import deepspeed",
            "; install it with: djl-serving engines install deepspeed, or with a line 'deepspeed' in requirements.txt",
        ),
        ("from djl_python import Input, Inputs", "model.py:1: djl_python has no 'Inputs'; did you mean Input?"),
        (
            "from djl_python import input_formatter",
            "djl_python has no 'input_formatter'; use: from djl_python.input_parser import input_formatter",
        ),
        (
            "from djl_python.output_formatter import input_formatter",
            "djl_python.output_formatter has no 'input_formatter'; use: from djl_python.input_parser import "
            "input_formatter",
        ),
        (
            "from djl_python import output_formatter\n@output_formatter\ndef write(response): ...",
            "model.py:2: output_formatter is a module, not a function; use: from djl_python.output_formatter import "
            "output_formatter",
        ),
        ("import helper", "helper.py:1: there is no module 'alsogone'"),
        ("class A:\n    import nosuchmodule", "model.py:2: "),
        ("try:\n    import nosuchmodule\nfinally:\n    pass", "model.py:2: "),
        ("try:\n    import nosuchmodule\nexcept ValueError:\n    pass", "model.py:2: "),
        ("with open('/dev/null'):\n    import nosuchmodule", "model.py:2: "),
    ],
)
def test_a_missing_module_is_a_fault_and_the_import_fails(tmp_path: Path, source: str, message: str) -> None:
    (tmp_path / "helper.py").write_text("import alsogone\n")
    (fault,) = faults_of(tmp_path, source)
    assert message in fault
    assert not runs(tmp_path)


@pytest.mark.parametrize(
    "source",
    [
        "import json, numpy.linalg, djl_python.inputs\nfrom djl_python import Input",
        "try:\n    import nosuchmodule\nexcept ImportError:\n    nosuchmodule = None",
        "try:\n    import nosuchmodule\nexcept (KeyError, ModuleNotFoundError):\n    pass",
        "try:\n    import nosuchmodule\nexcept:\n    import json",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import nosuchmodule",
        "import sys\nif sys.version_info < (3,):\n    import nosuchmodule",
        "def handle(inputs):\n    import nosuchmodule",
        "import contextlib\nwith contextlib.suppress(ImportError):\n    import nosuchmodule",
        "import own, package.part",
        "from djl_python import *",
        "from djl_python import output_formatter\n@output_formatter.output_formatter\ndef write(response): ...",
        "from djl_python import output_formatter\nfrom djl_python.output_formatter import output_formatter\n"
        "@output_formatter\ndef write(response): ...",
        "from djl_python.huggingface import HuggingFaceService",
        "try:\n    from djl_python import Inputs\nexcept ImportError:\n    from djl_python import Input",
    ],
)
def test_optional_imports_are_no_faults(tmp_path: Path, source: str) -> None:
    (tmp_path / "own.py").write_text("import model\n")  # each other's
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "part.py").touch()
    assert faults_of(tmp_path, source) == []
    assert runs(tmp_path)


def test_every_missing_module_is_told_in_one_run(tmp_path: Path) -> None:
    faults = faults_of(tmp_path, "import gone1\nimport json\nimport gone2\n")
    assert [fault.split(": ")[0].rpartition("/")[2] for fault in faults] == ["model.py:1", "model.py:3"]


@pytest.mark.parametrize(
    ("requirements", "faults"),
    [
        ("nosuchmodule>=1\n", 0),
        ("# none\n\nnumpy\n", 1),
        ("numpy>=1.0 ; python_version > '3'\n", 1),
        ("some-distribution-with-another-name[extra]==2\n", 0),
        ("-r more.txt\n", 0),
        ("https://example.com/a.whl\n", 0),
        (None, 1),
    ],
)
def test_requirements_may_bring_it(tmp_path: Path, requirements: str | None, faults: int) -> None:
    if requirements is not None:
        (tmp_path / "requirements.txt").write_text(requirements)
    assert len(faults_of(tmp_path, GONE)) == faults


@pytest.mark.parametrize(
    "how",
    [
        "import os\nos.system('pip install nosuchmodule')",
        "import subprocess, sys\nsubprocess.check_call([sys.executable, '-m', 'pip', 'install', 'nosuchmodule'])",
        "import site\nsite.addsitedir('/opt/mine')",
    ],
)
def test_a_file_that_brings_modules_itself_is_left_to_its_import(tmp_path: Path, how: str) -> None:
    assert faults_of(tmp_path, f"{how}\n{GONE}") == []


def test_a_file_that_says_where_to_look_is_left_to_its_import(tmp_path: Path) -> None:
    assert faults_of(tmp_path, f"import sys\nsys.path.append('/opt/mine')\n{GONE}") == []
    (tmp_path / "helper.py").write_text("import sys\nsys.path.append('/opt/mine')\n")
    assert faults_of(tmp_path, f"import helper\n{GONE}") == []
