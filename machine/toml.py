"""Reads TOML files into pydantic models. Errors name the file, the key and the remedy."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError, core_schema

from machine import foreign
from machine.errors import BadInput
from machine.explain import explained, is_plain_list


class Strict(BaseModel):
    """A table of a TOML file. Unknown keys are errors, and values are not converted between types.

    A single value may replace a list of plain values.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _one_is_a_list(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        lists = {key for key, field in cls.model_fields.items() if is_plain_list(field.annotation)}
        return {
            key: [value] if key in lists and isinstance(value, (str, int, float)) else value
            for key, value in data.items()
        }


Model = TypeVar("Model", bound=BaseModel)


def matching(pattern: str, words: str) -> AfterValidator:
    """Text that fully matches `pattern`. Its error is `words`, such as `must begin with a letter`."""

    def validate(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(words)
        return text

    return AfterValidator(validate)


@dataclass(frozen=True)
class one_of:  # noqa: N801 - an annotation, which reads like a function's call
    """One of the words that `known` returns when the file is read. Errors are those of a Literal."""

    known: Callable[[], Iterable[str]]

    def __get_pydantic_core_schema__(
        self, source: type[Any], handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_after_validator_function(self._validate, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {**handler(schema), "enum": list(self.known())}

    def _validate(self, text: str) -> str:
        words = list(self.known())
        if text not in words:
            expected = ", ".join(f"'{word}'" for word in words)
            raise PydanticCustomError("literal_error", "must be {expected}", {"expected": expected})
        return text


NAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"
NAME_WORDS = (
    "must begin with a letter or digit and go on with letters, digits, _, . and -, 64 characters at most"
)
NAME = matching(NAME_PATTERN, NAME_WORDS)
"""A name that becomes part of file names."""


def read_toml(path: Path) -> dict[str, Any]:
    """Return the tables of a TOML file. Raises BadInput if it cannot be read or parsed."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: is not UTF-8 text{foreign.remedy(path)}") from error
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"{path}: is not valid TOML: {error}{foreign.remedy(path)}") from error


def check(model: type[Model], data: Mapping[str, Any], source: str) -> Model:
    """`data` as a `model`. Raises BadInput that lists every wrong key of `source` with its remedy."""
    try:
        return model.model_validate(dict(data))
    except ValidationError as error:
        lines = [f"{source}: {line}" for line in explained(model, data, error)]
        raise BadInput("\n".join(lines)) from error
