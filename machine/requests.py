"""Turns the messages of gRPC requests into checked values. Errors name the field, and what it may be."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from machine.errors import BadInput
from machine.explain import explained_fields


class Request(BaseModel):
    """A message, with a field for each of the message's fields."""

    model_config = ConfigDict(from_attributes=True, frozen=True)


class Nothing(Request):
    """A message without fields."""


Model = TypeVar("Model", bound=Request)


_MOST_LINES = 10


def checked(model: type[Model], message: Any) -> Model:
    """Return `message` as a `model`. Raises BadInput that lists the fields with wrong values."""
    try:
        return model.model_validate(message)
    except ValidationError as error:
        lines = explained_fields(model, error)
        more = [f"and {len(lines) - _MOST_LINES} more"] if len(lines) > _MOST_LINES else []
        raise BadInput("\n".join(lines[:_MOST_LINES] + more)) from None


def _ipv4(text: str) -> str:
    try:
        ipaddress.IPv4Address(text)
    except ValueError:
        raise ValueError("must be an IPv4 address, such as 10.1.1.2") from None
    return text


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("must be of printable characters")
    return text


Finite = Annotated[float, Field(allow_inf_nan=False)]
IPv4 = Annotated[str, AfterValidator(_ipv4)]
Printable = AfterValidator(_printable)
