"""What a file surely has (True), surely lacks (False), and what only its import would tell (None)."""

from __future__ import annotations

from pathlib import Path

import pytest

from djl_python.usercode.source import UserSource

HANDLE = "\n    def handle(self, inputs): ..."
ASYNC_HANDLE = "\n    async def handle(self, inputs): ..."
OTHER = "\n    def other(self): ..."


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.py"


def read(path: Path, source: str) -> UserSource:
    path.write_text(source)
    return UserSource(path)


@pytest.mark.parametrize(
    ("source", "answer"),
    [
        ("def x(): ...", True),
        ("class x: ...", True),
        ("import os.path as x", True),
        ("def f():\n    global x\n    def x(): ...", True),
        ("def f(a: (x := int)): ...", True),
        ("print(x)", False),
        ("def f():\n    x = 1", False),
        ("def f():\n    global x\n    print(x)", False),
        ("from os import *", None),
        ("def __getattr__(name): ...", None),
        ("eval('1')", None),
        ("exec('x = 1')", None),
        ("globals()['x'] = 1", None),
        ("locals()['x'] = 1", None),
        ("vars()['x'] = 1", None),
        ("import sys\nsys.modules[__name__].x = 1", None),
        ("setattr(module, 'x', 1)", None),
        ("module.__dict__['x'] = 1", None),
    ],
)
def test_a_name(path: Path, source: str, answer: bool | None) -> None:
    assert read(path, source).has("x") is answer


@pytest.mark.parametrize(
    ("source", "answer"),
    [
        (f"class A:{HANDLE}{OTHER}", "A"),
        (f"class A:{ASYNC_HANDLE}", "A"),
        (f"class A:{OTHER}", ""),
        (f"class A:{HANDLE}\nclass B: ...", None),
        ("class A: ...\nclass B(A): ...", None),
        ("exec('class A: ...')", None),
        ("def handle(inputs): ...", ""),
    ],
)
def test_a_class_with_a_handle(path: Path, source: str, answer: str | None) -> None:
    assert read(path, source).handler_class == answer


@pytest.mark.parametrize(
    ("source", "answer"),
    [
        ("@input_formatter\ndef f(inputs): ...", True),
        ("@module.output_formatter()\n@other\nasync def f(inputs): ...", True),
        ("@other\ndef f(inputs): ...", None),
        ("def f(inputs): ...\ng = output_formatter(f)", None),
        ("exec('@input_formatter\\ndef f(inputs): ...')", None),
        ("from mine import f", None),
        ("from . import f", None),
        ("from .os import f", None),
        ("from os.path import join", False),
        ("from djl_python.inputs import Input", False),
        ("import mine", False),
        ("def f(inputs): ...", False),
    ],
)
def test_formatters(path: Path, source: str, answer: bool | None) -> None:
    assert read(path, source).has_formatters is answer


def test_functions_are_those_that_a_user_may_have_meant(path: Path) -> None:
    source = "def b(): ...\nasync def a():\n    def c(): ...\ndef _d(): ...\nclass A:\n    def method(self): ..."
    assert read(path, source).functions == ["b", "a"]


def test_a_file_that_python_warns_of_is_read(path: Path) -> None:
    assert read(path, "x = '\\d' is 1").has("x")
