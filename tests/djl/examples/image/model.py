"""The mean color of an image, sent as it is or in a form beside a name."""

from djl_python import Input, Output


def handle(inputs: Input) -> Output:
    if inputs.is_empty():
        return None
    image = inputs.get_as_image("data").convert("RGB")
    color = image.resize((1, 1)).getpixel((0, 0))
    name = inputs.get_as_string("name") if inputs.contains_key("name") else None
    return Output().add_as_json({"size": image.size, "color": color, "name": name})
