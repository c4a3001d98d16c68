"""Which addresses are https, and the faults of the settings for that. Runs in the front end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from .address import Address

#: Settings that mean something where an address is https.
_FOR_HTTPS: Final = ("certificate_file", "private_key_file", "client_ca_file", "client_certificates")


def with_schemes(values: Mapping[str, Any], *, stated: bool) -> dict[str, Any]:
    """The server's settings, with https at inference_address where a certificate is given and nothing says http.

    Args:
        stated: inference_address was given with its scheme.
    """
    address = values.get("inference_address", Address())
    if stated or not values.get("certificate_file") or address.unix_path:
        return dict(values)
    return {**values, "inference_address": msgspec.structs.replace(address, secure=True)}


def https_faults(values: Mapping[str, Any]) -> Iterator[str]:
    """The faults of these settings, a sentence for each."""
    inference, management = values.get("inference_address", Address()), values.get("management_address")
    secure = [str(address) for address in (inference, management) if address is not None and address.secure]
    if secure and not values.get("certificate_file"):
        yield (
            f"{secure[0]}: expected certificate_file and private_key_file, which https needs; djl-serving tls makes a "
            "pair for tests"
        )
    if values.get("private_key_file") and not values.get("certificate_file"):
        yield "private_key_file: expected certificate_file beside it"
    if management is not None and management.secure != inference.secure:
        shared = (inference.host, inference.port) == (management.host, management.port)
        if shared and inference.port:
            yield f"inference_address={inference}, management_address={management}: expected one scheme at one port"


def https_remarks(values: Mapping[str, Any]) -> Iterator[str]:
    """Warnings about settings that have no effect."""
    addresses = values.get("inference_address", Address()), values.get("management_address")
    if not any(address is not None and address.secure for address in addresses):
        if given := [name for name in _FOR_HTTPS if values.get(name)]:
            yield f"{', '.join(given)}: no effect, for no address is https"
    elif "client_certificates" in values and not values.get("client_ca_file"):
        yield "client_certificates has no effect without client_ca_file"
