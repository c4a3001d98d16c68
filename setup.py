"""What setup.cfg can't say: the CPU kernels are compiled, for every kind of processor that they know.

Whoever installs the wheel needs no compiler, and no start waits for one. Where there is no compiler now, or there are
no kernels for the machine, the wheel has none and is one for all platforms. An editable installation gets the kernels
for the processor that it is made on.
"""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

FOLDER = Path(__file__).parent / "djl_python" / "engine" / "native"

# By its file: the package can't be imported before what it needs is installed.
_spec = spec_from_file_location("compiling", FOLDER / "compiling.py")
assert _spec is not None
assert _spec.loader is not None
compiling = module_from_spec(_spec)
_spec.loader.exec_module(compiling)


class Kernels(Extension):
    """A library that Python doesn't import. Optional: an old compiler may not know the processor."""

    def __init__(self, processor: Any) -> None:
        super().__init__(f"djl_python.engine.native.kernels.{Path(processor.library).stem}", [], optional=True)
        self.processor = processor


class BuildKernels(build_ext):
    """Makes `Kernels`."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.parallel = True
        if self.editable_mode:
            here = compiling.features_here()
            self.extensions = [kernels for kernels in self.extensions if kernels.processor.features <= here][:1]

    def get_ext_filename(self, fullname: str) -> str:
        return fullname.replace(".", "/") + ".so"

    def build_extension(self, ext: Any) -> None:
        path, there = Path(self.get_ext_fullpath(ext.name)), compiling.SOURCES / ext.processor.library
        path.parent.mkdir(parents=True, exist_ok=True)
        if self.editable_mode and compiling.is_current(there, ext.processor):
            self.copy_file(str(there), str(path))
            return
        try:
            compiling.compile_kernels(ext.processor, path)
        except compiling.CompilationError as reason:
            raise CompileError(str(reason)) from reason


class WheelForAnyPython(bdist_wheel):
    """The kernels know nothing of Python."""

    def get_tag(self) -> tuple[str, str, str]:
        *_, platform_name = super().get_tag()
        return "py3", "none", platform_name


setup(
    ext_modules=[Kernels(processor) for processor in compiling.PROCESSORS] if compiling.compiler() else [],
    cmdclass={"build_ext": BuildKernels, "bdist_wheel": WheelForAnyPython},
)
