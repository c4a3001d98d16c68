"""The documents that users read: which there are, the parts of them that come from the code, and `make docs`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from djl_python.config import environment_table, settings_table, without_effect_table
from djl_python.core.budgets import budgets
from djl_python.dialects import all_dialects
from djl_python.dialects.mindie.dialect import MindieParameters
from djl_python.dialects.shared.chat.request import ChatRequest
from djl_python.dialects.shared.completion import CompletionRequest
from djl_python.dialects.shared.fields.structured_output import StructuredOutputFields
from djl_python.dialects.shared.token_reports import TokenReportFields
from djl_python.dialects.tgi.types import GenerateParameters
from djl_python.dialects.triton.types import TritonParameters
from djl_python.server.app import OWN_ROUTES
from djl_python.server.metrics.specs import SPECS
from tests.packaging.fields import fields_table

ROOT: Final = Path(__file__).resolve().parents[2]
README: Final = ROOT / "README.md"
DOCS: Final = ROOT / "djl_python" / "docs"
#: What users read. Its code blocks run as tests, and all of its generated parts are made by `make docs`.
DOCUMENTS: Final = (README, *sorted(DOCS.glob("*.md")))


def routes_table() -> str:
    """Every route of every API as a Markdown table."""
    rows = [
        f"| {name} | `{route.method} {route.path}` | {route.summary} |"
        for name, routes in (
            *((name, (*dialect.routes, *dialect.shared)) for name, dialect in all_dialects().items()),
            ("server", OWN_ROUTES),
        )
        for route in routes
        if not route.path.startswith("/v2/models/{model}/versions/")  # of each operation on a model, as the text says
    ]
    return "\n".join(["| API | route | what |", "|---|---|---|", *rows])


def metrics_table() -> str:
    """Every metric as a Markdown table."""
    rows = [
        f"| `{spec.full_name}` | {spec.kind.value} | {', '.join(f'`{label}`' for label in spec.labels)} | {spec.help} |"
        for spec in SPECS
    ]
    return "\n".join(["| metric | type | labels | what |", "|---|---|---|---|", *rows])


def limits_table() -> str:
    """Every limit on a request as a Markdown table."""
    rows = [f"| {one.where} | {one.most:,} {one.of} | {one.why} |" for one in budgets()]
    return "\n".join(["| of | at most | why |", "|---|---|---|", *rows])


#: Of OpenAI's fields, those without effect, which the text names.
_LABELS: Final = (
    *("user", "metadata", "store", "safety_identifier"),
    *("service_tier", "prompt_cache_key", "prompt_cache_retention", "prediction"),
)

#: Those that have a table of their own.
_FORM: Final = StructuredOutputFields.__struct_fields__

#: Generated parts, by the name in their markers. Each is in one document.
TABLES: Final[Mapping[str, Callable[[], str]]] = {
    "routes": routes_table,
    "fields of chats and completions": lambda: fields_table(TokenReportFields, without=(*_LABELS, *_FORM)),
    "fields of structured output": lambda: fields_table(StructuredOutputFields),
    "fields of chats": lambda: fields_table(ChatRequest, without=TokenReportFields.__struct_fields__),
    "fields of completions": lambda: fields_table(CompletionRequest, without=TokenReportFields.__struct_fields__),
    "parameters of TGI": lambda: fields_table(GenerateParameters),
    "parameters of MindIE": lambda: fields_table(MindieParameters),
    "parameters of Triton": lambda: fields_table(TritonParameters),
    "settings": settings_table,
    "settings without effect": without_effect_table,
    "environment": environment_table,
    "metrics": metrics_table,
    "limits": limits_table,
}


def markers(name: str) -> tuple[str, str]:
    """The lines before and after a generated part."""
    return f"<!-- {name}: written by make docs -->", f"<!-- end of {name} -->"


def with_tables(markdown: str) -> str:
    """The text with each of the generated parts that it has brought up to date.

    Raises:
        ValueError: a part begins and does not end.
    """
    for name, table in TABLES.items():
        begin, end = markers(name)
        before, mark, rest = markdown.partition(begin)
        _, closed, after = rest.partition(end)
        if mark and not closed:
            raise ValueError(f"{begin} without {end}")
        if mark:
            markdown = f"{before}{begin}\n\n{table().strip()}\n\n{end}{after}"
    return markdown


if __name__ == "__main__":
    for path in DOCUMENTS:
        path.write_text(with_tables(path.read_text(encoding="utf-8")), encoding="utf-8")
