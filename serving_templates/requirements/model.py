"""A handler that needs a package: letters written from a template."""

from jinja2.sandbox import SandboxedEnvironment

from djl_python import Input, Output

letter = SandboxedEnvironment().from_string("Dear {{ name }}, {% for what in news %}{{ what }}. {% endfor %}Yours")


def handle(inputs: Input) -> Output | None:
    if inputs.is_empty():
        return None
    asked = inputs.get_as_json()
    return Output().add_as_json({"letter": letter.render(name=asked["name"], news=asked.get("news", []))})
