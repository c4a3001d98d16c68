"""Types of settings that several declarations need. In the front end and in the worker."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta

Positive = Annotated[int, Meta(ge=1)]
HttpErrorCode = Annotated[int, Meta(ge=400, le=599)]
HeaderValue = Annotated[str, Meta(pattern=r"^[\x20-\x7e]*$", extra={"expected": "printable ASCII"})]
DEVICES_PATTERN: Final = r"^(\*|(-1|cpu|(gpu|cuda:?)?\d+)(;(-1|cpu|(gpu|cuda:?)?\d+))*)$"
DEVICES_EXPECTED: Final = "* or a list such as gpu0;gpu1"
Degree = Positive | Literal["max"]
