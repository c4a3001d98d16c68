from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONFTEST = """
from tests import processor_time

def pytest_configure(config):
    processor_time.register(config)
"""
#: Its child takes the processor for a while, and ends before the test does.
BUSY = """
import subprocess, sys

def test_busy():
    subprocess.run([sys.executable, "-c", "import time\\nwhile time.process_time() < 0.5: pass"], check=True)
"""


def test_a_files_time_has_that_of_its_child_processes_and_comes_from_workers(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_busy.py").write_text(BUSY)
    (tmp_path / "test_idle.py").write_text("def test_idle(): pass\n")
    command = [sys.executable, "-m", "pytest", "-p", "xdist", "-n", "1", "--rootdir", str(tmp_path), str(tmp_path)]
    own = {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
    environment = {**os.environ, **own}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path, check=True)
    taken_s = {
        name: float(spent) for spent, name in re.findall(r"^([\d.]+) s (test_\w+\.py)$", done.stdout, re.MULTILINE)
    }
    assert taken_s["test_busy.py"] >= 0.5 > taken_s["test_idle.py"]
