"""Arrays in, arrays out: in DJL's NDList or in .npz, as they came."""

import numpy as np

from djl_python import Input, Output


def handle(inputs: Input) -> Output:
    if inputs.is_empty():
        return None
    outputs = Output()
    if inputs.get_property("Content-Type") == "tensor/npz":
        arrays = inputs.get_as_npz()
        outputs.add_as_npz([np.square(array) for array in arrays])
        outputs.add_property("Content-Type", "tensor/npz")
    else:
        arrays = inputs.get_as_numpy()
        outputs.add_as_numpy([np.square(array) for array in arrays])
        outputs.add_property("Content-Type", "tensor/ndlist")
    return outputs
