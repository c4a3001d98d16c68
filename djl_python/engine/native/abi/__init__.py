"""The interface between Python and the kernels: enumerations, constants, and structures, described here once.

Engine process; no torch. `structures` describes structures, and `header` writes kernels/abi.h from the descriptions:
after a change, run `python -m djl_python.engine.native.abi` and commit the file, as no build needs Python's side. When
kernels are loaded, `places` compares the offsets.

T is the model's format, bf16 or fp32; other numbers are fp32 unless said otherwise. Addresses are of contiguous arrays
unless there is a `stride` or a `pitch`: the numbers from the beginning of a row that is read, and of one that is
written, to that of the next; 0: rows are contiguous. An address may be set later, before an operation runs, and is None
until then. R is the number of rows: one for each token, unless an operation has `rows_per_token`.
"""
