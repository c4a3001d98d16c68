"""Writes kernels/abi.h anew: `python -m djl_python.engine.native.abi`."""

from .header import HEADER, header

HEADER.write_text(header())
