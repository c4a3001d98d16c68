"""Decode content entries to Python values by content-type, and encode values back, as DJL's handlers do.

Runs in the worker.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from typing import Any, Final

import jsonlines
import msgspec

from ..core.errors import DecodeError
from ..formats.csv_reading import read_dicts, read_rows
from ..formats.forms import URLENCODED, media_type
from ..formats.http_rules import preferred
from ..formats.json_framing import JSON, JSONLINES_TYPES
from ..inputs import Input
from ..outputs import NDLIST, NPZ, Output

_CSV: Final = "text/csv"


def decode(inputs: Input, content_type: str | None, key: str | None = None, require_csv_headers: bool = True) -> Any:
    """Decode a content entry to the value that a pipeline takes.

    application/json, or no content-type: the JSON value, `{"inputs": ""}` for no content-type and no data. text/csv:
    see `decode_csv`. Everything else: `{"inputs": X}`, where X is a list of one str (text/plain), an image (image/*),
    bytes (audio/*, anything unknown), a list of arrays (tensor/npz, tensor/ndlist, application/x-npy), a str (form) or
    a list (jsonlines).

    Raises:
        DecodeError: the content is not what its content-type says.
    """
    kind = media_type(content_type or "")
    if not kind:
        return inputs.get_as_json(key) if inputs.get_as_bytes(key) else {"inputs": ""}
    if kind == JSON:
        return inputs.get_as_json(key)
    if kind == _CSV:
        return decode_csv(inputs, require_headers=require_csv_headers, key=key)
    return {"inputs": _decode_value(inputs, kind, key)}


def _decode_value(inputs: Input, kind: str, key: str | None) -> Any:
    if kind == "text/plain":
        return [inputs.get_as_string(key)]
    if kind.startswith("image/"):
        return inputs.get_as_image(key)
    if kind == NPZ:
        return inputs.get_as_npz(key)
    if kind in (NDLIST, "application/x-npy"):
        return inputs.get_as_numpy(key)
    if kind in JSONLINES_TYPES:
        return decode_jsonlines(inputs.get_as_string(key))
    if kind == URLENCODED:
        return inputs.get_as_string(key)
    return inputs.get_as_bytes(key)


def decode_csv(inputs: Input, require_headers: bool = True, key: str | None = None) -> Any:
    """Decode CSV to `{"inputs": [...]}`: the values of the column "inputs" if there is one, otherwise a dict per row.

    With `require_headers=False`, decode to a float64 array instead, shape (lines, columns).

    Raises:
        DecodeError: not CSV, or no header line with one of question, context, inputs; or, for an array, a cell that
            is not a number, or lines of different lengths.
    """
    text = inputs.get_as_string(key)
    if not require_headers:
        return _decode_numbers(text)
    names, rows = read_dicts(text, lambda name: name.strip().lower())
    if not {"question", "context", "inputs"} & set(names):
        raise DecodeError("CSV: expected a header line with a column named inputs, question or context")
    return {"inputs": [row["inputs"] for row in rows] if "inputs" in names else rows}


def _decode_numbers(text: str) -> Any:
    import numpy as np

    rows = read_rows(text)
    if len({len(row) for row in rows}) > 1:
        raise DecodeError("CSV: the lines differ in their number of columns")
    try:
        return np.array([[float(cell) for cell in row] for row in rows])
    except ValueError as exc:
        raise DecodeError(f"CSV: expected numbers only: {exc}") from exc


def decode_jsonlines(text: str) -> list[Any]:
    """The values of a jsonlines text; empty lines are skipped.

    Raises:
        DecodeError: a line is not JSON; names the line.
    """
    with jsonlines.Reader(io.StringIO(text), loads=_load_line) as reader:
        try:
            return list(reader.iter(skip_empty=True))
        except jsonlines.InvalidLineError as exc:
            raise DecodeError(f"line {exc.lineno} is not valid JSON: {exc}") from exc


def _load_line(line: str | bytes) -> Any:
    try:
        return msgspec.json.decode(line)
    except RecursionError as exc:
        raise ValueError("nested too deeply") from exc  # as the reader takes what is wrong with a line


def encode_csv(content: Iterable[Mapping[str, Any]]) -> str:
    """Rows as CSV with a header line made of the first row's keys.

    Raises:
        TypeError: something else than rows.
        ValueError: a row has a key that the first row lacks.
    """
    if isinstance(content, Mapping | str | bytes) or not isinstance(content, Iterable):
        raise TypeError(f"text/csv: expected rows, a list of dicts, got {type(content).__name__}")
    rows = list(content)
    if others := [type(row).__name__ for row in rows if not isinstance(row, Mapping)]:
        raise TypeError(f"text/csv: expected rows, a list of dicts, got a list with {others[0]}")
    out = io.StringIO()
    if rows:
        writer = csv.DictWriter(out, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return out.getvalue()


def encode(outputs: Output, prediction: Any, content_type: str | None, key: str | None = None) -> None:
    """Append `prediction` in the form that `content_type` (the client's Accept header) asks for, and set Content-Type.

    Forms are JSON, CSV, .npz and DJL's NDList, the first of those with the highest weight; NDList also if none is
    accepted.
    """
    kind = preferred(content_type or "", (JSON, _CSV, NPZ, NDLIST))
    if kind == JSON:
        outputs.add_as_json(prediction, key=key).add_property("Content-Type", JSON)
    elif kind == _CSV:
        outputs.add(encode_csv(prediction), key=key).add_property("Content-Type", _CSV)
    elif kind == NPZ:
        outputs.add_as_npz(prediction, key=key).add_property("Content-Type", NPZ)
    else:
        outputs.add_as_numpy(prediction, key=key).add_property("Content-Type", NDLIST)
