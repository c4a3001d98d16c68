"""Fields of a form, and parameters of the URL, by name."""

from djl_python import Input, Output


def handle(inputs: Input) -> Output:
    if inputs.is_empty():
        return None
    content = inputs.get_content()
    fields = {content.key_at(i): len(content.value_at(i)) for i in range(content.size())}
    outputs = Output()
    outputs.add_property("Content-Type", "text/plain")
    outputs.add(f"{inputs.get_as_string('greeting')}, {inputs.get_as_string('name')}! {sorted(fields)}")
    return outputs
