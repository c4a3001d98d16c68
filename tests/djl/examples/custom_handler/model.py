"""A service object that is initialized with the model's properties, as DJL's pages show it."""

from djl_python import Input, Output


class Ruler:
    def __init__(self):
        self.initialized = False
        self.unit = None

    def initialize(self, properties: dict):
        self.unit = properties.get("unit", "m")
        self.device_id = properties.get("device_id", "-1")
        self.initialized = True

    def inference(self, inputs: Input) -> Output:
        outputs = Output()
        try:
            data = inputs.get_as_json()
            outputs.add_as_json({"length": sum(data["parts"]), "unit": self.unit, "device": self.device_id})
        except Exception as e:
            outputs = Output().error(str(e))
        return outputs


_service = Ruler()


def handle(inputs: Input) -> Output:
    if not _service.initialized:
        _service.initialize(inputs.get_properties())
    if inputs.is_empty():
        return None
    return _service.inference(inputs)
