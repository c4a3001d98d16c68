"""What setup.cfg can't say: the CPU kernels are compiled, for this machine's processor or for every kind there is.

A wheel that is installed where it is built, as `pip install .` does it, needs the first. One that is to be distributed
is built with DJL_SERVING_KERNELS=all: whoever installs it needs no compiler, and no start waits for one. On a processor
whose kernels a wheel lacks, they are compiled at the first start, if there is a compiler. Where there is none now, or
there are no kernels for the machine, the wheel has none and is one for all platforms.
"""

import os
from collections.abc import Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, Final

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

FOLDER = Path(__file__).parent / "djl_python" / "engine" / "native"
#: Says for which processors: nothing, or all.
VARIABLE: Final = "DJL_SERVING_KERNELS"

# By its file: the package can't be imported before what it needs is installed.
_spec = spec_from_file_location("compiling", FOLDER / "compiling.py")
assert _spec is not None
assert _spec.loader is not None
compiling = module_from_spec(_spec)
_spec.loader.exec_module(compiling)


class Kernels(Extension):
    """A library that Python doesn't import. Optional: an old compiler may not know the processor.

    Attributes:
        processor: what it is for.
        older: what it is for instead where the compiler doesn't know that, the first that it knows.
    """

    def __init__(self, processor: Any, older: Sequence[Any] = ()) -> None:
        super().__init__(f"djl_python.engine.native.kernels.{Path(processor.library).stem}", [], optional=True)
        self.processor = processor
        self.older = older


class BuildKernels(build_ext):
    """Makes `Kernels`, and says so: pip shows it with -v alone, and nothing else of a build."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.parallel = True

    def get_ext_filename(self, fullname: str) -> str:
        return fullname.replace(".", "/") + ".so"

    def build_extension(self, ext: Any) -> None:
        path, there = Path(self.get_ext_fullpath(ext.name)), compiling.SOURCES / ext.processor.library
        path.parent.mkdir(parents=True, exist_ok=True)
        if self.editable_mode and compiling.is_current(there, ext.processor):
            self.copy_file(str(there), str(path))
            return
        kinds = [ext.processor] if self.editable_mode else [ext.processor, *ext.older]
        for kind in kinds:
            print(f"compiling the CPU kernels for {kind.name}: half a minute of processor time", flush=True)
            try:
                compiling.compile_kernels(kind, path.with_name(kind.library))
            except compiling.CompilationError as reason:
                if kind is kinds[-1]:
                    raise CompileError(str(reason)) from reason
                print(f"not for {kind.name}: {reason}", flush=True)
            else:
                return


class WheelForAnyPython(bdist_wheel):
    """The kernels know nothing of Python."""

    def get_tag(self) -> tuple[str, str, str]:
        *_, platform_name = super().get_tag()
        return "py3", "none", platform_name


def libraries() -> list[Kernels]:
    """What is compiled, for this machine's own processor first."""
    wanted = os.environ.get(VARIABLE, "")
    if wanted not in ("", "all"):
        raise SystemExit(f"{VARIABLE}={wanted}: expected all, or nothing: for this machine's processor alone")
    here = compiling.processors_here()
    if compiling.compiler() is None:
        return []
    if not wanted:
        return [Kernels(here[0], here[1:])] if here else []
    return [Kernels(one) for one in (*here, *(one for one in compiling.PROCESSORS if one not in here))]


setup(
    ext_modules=libraries(),
    cmdclass={"build_ext": BuildKernels, "bdist_wheel": WheelForAnyPython},
)
