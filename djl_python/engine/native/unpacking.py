"""Makes numbers of a GGUF file's blocks with the kernels, at load. Runs in the engine process.

For torch's own code, which multiplies numbers, and for proofs (decision 169).
"""

from __future__ import annotations

from contextlib import closing

import torch
from torch import Tensor

from ..checkpoints.blocks import BlockRows
from .abi.enums import BlockType
from .abi.operations import OperationArray
from .abi.parts import PackedWeight
from .abi.sampling import UnpackBlocksOp
from .abi.step_inputs import StepInputs
from .block_forms import FORMS
from .library import KernelsUnavailableError
from .thread_pool import FORMATS, ThreadPool


def unpack_blocks(rows: BlockRows, k: int, dtype: torch.dtype) -> Tensor | None:
    """The numbers of rows of blocks, (n, k), computed in fp32; None where there are no kernels.

    Example:
        unpack_blocks(source.blocks(), 576, torch.bfloat16)
    """
    form = FORMS[rows.type]
    table = torch.tensor(form.table, dtype=torch.int8)
    made = torch.empty(len(rows.addresses), k, dtype=dtype if dtype in FORMATS else torch.float32)
    operation = UnpackBlocksOp(
        n=len(made),
        k=k,
        in_=rows.addresses.data_ptr(),
        type=BlockType[rows.type],
        form=PackedWeight(
            format=form.format, scaling=form.scaling, zero=form.zero, tables=table.data_ptr() if form.table else None
        ),
        out=made.data_ptr(),
    )
    try:
        pool = ThreadPool(torch.get_num_threads())  # threads come and go in less time than a weight takes
    except KernelsUnavailableError:  # the log says so where a program is opened
        return None
    with closing(pool):
        pool.run(OperationArray([operation]), StepInputs(), bf16=made.dtype == torch.bfloat16)
    return made.to(dtype)
