"""Every error that a user of the server can meet.

A client fault says what is wrong, the value, the limit and the remedy, so that it can be mended
without reading our code. A server fault says which request it concerns. Neither knows how Triton
spells its codes beyond the name in `code`.
"""

from __future__ import annotations

MAX_SHOWN_CHARACTERS = 100


def shown(value: object) -> str:
    """Return a client's value as an error may repeat it: in ASCII, and cut where it is long.

    A gRPC status carries some kilobytes at most; a longer one would replace the whole error by a protocol error.
    """
    text = ascii(value)
    return text if len(text) <= MAX_SHOWN_CHARACTERS else f"{text[:MAX_SHOWN_CHARACTERS]}..."


class AsrError(Exception):
    """The root of all errors that become a reply; `code` is the name of a Triton error code."""

    code = "INTERNAL"
    outcome = "server_error"


class ClientError(AsrError):
    """The request itself is wrong: sending it again unchanged fails again."""

    code = "INVALID_ARG"
    outcome = "client_error"


class ServerError(AsrError):
    """We failed at a request that was in order."""


class UnavailableError(AsrError):
    """The request was in order, but the server cannot take it now: trying later can succeed."""

    code = "UNAVAILABLE"
    outcome = "unavailable"


class DeadlineError(UnavailableError):
    """The request waited past its own deadline and was never run."""

    outcome = "timed_out"


class CancelledError(AsrError):
    """The client took the request back."""

    code = "CANCELLED"
    outcome = "cancelled"


class ConfigError(ValueError):
    """The configuration is wrong: names the key, the value, what is allowed and the remedy."""
