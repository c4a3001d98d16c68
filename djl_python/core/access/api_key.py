"""An API key, as the server knows it: by its hash. Runs in the front end and in `djl-serving keys`."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from .scopes import KEY_SCOPES, Scope

#: The prefix of keys that this server makes: scanners for leaked secrets recognize it.
PREFIX: Final = "djl_"
_SECRET_BYTES: Final = 32
#: The fields of a key that limit how much it may have at a time.
KEY_LIMITS: Final = ("requests_per_minute", "tokens_per_minute", "tokens_in_flight")
_Models = Annotated[tuple[str, ...], Meta(description="The models that it may use; none named: all.")]
_Most = Annotated[int, Meta(ge=1)] | None


class ApiKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A key: its owner and scopes. The secret itself is not kept.

    A name stands for an owner and may have several keys, as while one replaces the other. Whoever may manage models
    may do everything: a model's code could do it for them.

    Attributes:
        sha256: of the secret, in hexadecimal digits.
        requests_per_minute, tokens_per_minute, tokens_in_flight: instead of the server's settings of these names.
    """

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$")]
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    scopes: Annotated[tuple[Scope, ...], Meta(min_length=1)]
    models: _Models = ()
    requests_per_minute: _Most = None
    tokens_per_minute: _Most = None
    tokens_in_flight: _Most = None
    created_at: Annotated[datetime, Meta(tz=True)] | None = None
    expires_at: Annotated[datetime, Meta(tz=True)] | None = None

    def __post_init__(self) -> None:
        """Refuse scopes that no key has."""
        if wrong := set(self.scopes) - set(KEY_SCOPES):
            known = ", ".join(scope.value for scope in KEY_SCOPES)
            raise ValueError(f"scopes: expected some of {known}, got {min(scope.value for scope in wrong)!r}")

    @property
    def is_manager(self) -> bool:
        """Whether it may do everything."""
        return Scope.MANAGE in self.scopes

    def allows(self, scope: Scope) -> bool:
        """Whether it may use routes of this scope."""
        return scope in self.scopes or self.is_manager or scope not in KEY_SCOPES

    def sees(self, owner: str) -> bool:
        """Whether it may see the files and batches of an owner; "" owns what was made before there were keys."""
        return self.is_manager or owner == self.name

    def may_use(self, model: str) -> bool:
        """Whether it may use a model of this name."""
        return not self.models or model in self.models

    def has_expired(self, now_s: float) -> bool:
        """Whether it is valid no longer, at a Unix time."""
        return self.expires_at is not None and self.expires_at.timestamp() <= now_s


#: The caller where a server needs no key. No key has its name.
ANYONE: Final = ApiKey(name="", sha256="", scopes=KEY_SCOPES)
#: The caller of a route that needs no key, where the server's other routes need one.
NOBODY: Final = ApiKey(name="", sha256="", scopes=())


def digest(secret: str) -> str:
    """The hash under which a secret is known.

    It is a fast one: slow hashes protect what people can remember, and a key has 256 random bits.
    """
    return hashlib.sha256(secret.encode(errors="surrogateescape")).hexdigest()


def new_secret() -> str:
    """A new key, which is shown once."""
    return PREFIX + secrets.token_urlsafe(_SECRET_BYTES)


def given_keys(secrets_given: Sequence[str]) -> tuple[ApiKey, ...]:
    """The keys that a command line or a variable has; they are for inference and metrics, and called api-key-1 ..."""
    return tuple(
        ApiKey(name=f"api-key-{number}", sha256=digest(secret), scopes=(Scope.INFER, Scope.METRICS))
        for number, secret in enumerate(secrets_given, 1)
    )


def now() -> datetime:
    """The time, to the second, as key files have it."""
    return datetime.fromtimestamp(int(time.time()), UTC)
