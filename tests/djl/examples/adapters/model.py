"""The functions that DJL calls when an adapter comes, changes and goes."""

from djl_python import Input, Output

adapters = {}


def register_adapter(inputs: Input):
    adapters[inputs.get_property("name")] = inputs.get_property("src")
    return Output(message=f"Adapter {inputs.get_property('name')} registered")


def update_adapter(inputs: Input):
    name = inputs.get_property("name")
    if name not in adapters:
        raise ValueError(f"Adapter {name} not registered.")
    adapters[name] = inputs.get_property("src")
    return Output(message=f"Adapter {name} updated")


def unregister_adapter(inputs: Input):
    del adapters[inputs.get_property("name")]
    return Output(message=f"Adapter {inputs.get_property('name')} unregistered")


def handle(inputs: Input):
    if inputs.is_empty():
        return None
    body = inputs.get_as_json()
    return Output().add_as_json({"adapter": adapters.get(body.get("adapter")), "inputs": body["inputs"]})
