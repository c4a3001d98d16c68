"""One call for several requests: each answer says with how many it was computed."""

from djl_python import Input, Output


def handle(inputs: Input) -> Output:
    if inputs.is_empty():
        return None
    outputs = Output()
    batch = inputs.get_batches()
    for i, item in enumerate(batch):
        text = item.get_as_json()["inputs"]
        outputs.add_as_json({"reversed": text[::-1], "together": len(batch)}, batch_index=i)
    return outputs
