"""Whatever pydantic finds wrong is said in words of our own, with key and remedy."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError
from pydantic_core import ValidationError as CoreError
from pydantic_core._pydantic_core import list_all_errors

from machine.errors import BadInput
from machine.explain import explained, suggestion
from machine.toml import NAME, Strict, check

Many = Annotated[tuple[int, ...], Field(min_length=1, strict=False)]


class Item(Strict):
    """An item."""

    size: Annotated[int, Field(ge=1)] = 1


class Table(Strict):
    """A table with a key of each type."""

    key: str = ""
    name: Annotated[str, NAME] = "n"
    kind: Literal["leaf-spine", "dumbbell"] = "dumbbell"
    sizes: Many | None = None
    pair: Annotated[tuple[float, float], Field(strict=False)] = (1.0, 2.0)
    rate_mbps: Annotated[float, Field(gt=0, allow_inf_nan=False, strict=False)] = 1.0
    yes: bool = True


class File(Strict):
    """A file."""

    table: Table = Table()
    item: Annotated[tuple[Item, ...], Field(strict=False)] = ()


@pytest.mark.parametrize("kind", list_all_errors(), ids=lambda kind: str(kind["type"]))
def test_no_message_of_pydantics_own_reaches_a_user(kind: Any) -> None:
    details: InitErrorDetails = {"type": kind["type"], "loc": ("key",), "input": "here"}
    if kind["type"] in ("value_error", "assertion_error"):
        details["ctx"] = {"error": ValueError("said by us")}
    elif context := kind.get("example_context"):
        details["ctx"] = context
    error = CoreError.from_exception_data("Table", [details])
    (line,) = explained(Table, {"key": "here"}, error)
    assert line.startswith("key: ")
    assert error.errors()[0]["msg"].lower() not in line.lower()
    assert not any(words in line for words in ("Input", "should", "valid ", "Unable"))


def test_an_error_type_that_nobody_knows_names_key_and_value() -> None:
    wrong = PydanticCustomError("of_tomorrow", "words of tomorrow")
    error = CoreError.from_exception_data("Table", [{"type": wrong, "loc": ("key",), "input": 7}])
    assert explained(Table, {"key": 7}, error) == ["key: 7 cannot stand here"]


@pytest.mark.parametrize(
    ("table", "line"),
    [
        (
            {"kind": "leafspine"},
            'must be "leaf-spine" or "dumbbell", is "leafspine"; did you mean leaf-spine?',
        ),
        ({"kind": "Dumbbell"}, "did you mean dumbbell?"),
        ({"nmae": "x"}, "[table], nmae: unknown key; did you mean name?"),
        ({"name": "../x"}, "[table], name: must begin with a letter or digit and go on with"),
        ({"sizes": []}, "[table], sizes: needs at least 1 item, has 0"),
        ({"sizes": [1, "x"]}, '[table], sizes, item 2: must be a whole number, is "x"'),
        ({"sizes": "x"}, '[table], sizes: must be a whole number, is "x"'),
        ({"pair": [1.0]}, "[table], pair, item 2: a value is missing"),
        ({"pair": [1, 2, 3]}, "[table], pair: needs at most 2 items, has 3"),
        ({"pair": 1}, "[table], pair: must be a list, is 1"),
        ({"rate_mbps": float("inf")}, "[table], rate_mbps: must be a finite number"),
        ({"rate_mbps": 0}, "[table], rate_mbps: must be above 0, is 0"),
        ({"rate_gbps": 1}, "rates are in Mbit/s: use rate_mbps"),
        ({"yes": 1}, "[table], yes: must be true or false, is 1"),
    ],
)
def test_a_mistake_is_told_with_its_key_and_remedy(table: dict[str, Any], line: str) -> None:
    with pytest.raises(BadInput) as raised:
        check(File, {"table": table}, "x.toml")
    (found,) = str(raised.value).splitlines()
    assert found.startswith("x.toml: [table], ")
    assert line in found


@pytest.mark.parametrize(
    ("data", "line"),
    [
        ({"item": [{}, {"size": 0}]}, "x.toml: [[item]] 2, size: must be at least 1, is 0"),
        ({"item": [3]}, "x.toml: [[item]] 1: must be a table"),
        ({"item": 3}, "x.toml: item: must be tables, as [[item]]"),
        ({"table": 3}, "x.toml: table: must be a table, as [table]"),
    ],
)
def test_tables_are_named_as_the_file_has_them(data: dict[str, Any], line: str) -> None:
    with pytest.raises(BadInput) as raised:
        check(File, data, "x.toml")
    assert line in str(raised.value)


def test_one_value_stands_for_a_list_of_one() -> None:
    assert check(File, {"table": {"sizes": 7}}, "x.toml") == check(File, {"table": {"sizes": [7]}}, "x.toml")


def test_a_list_of_which_every_item_is_wrong_is_not_also_too_short() -> None:
    with pytest.raises(ValidationError) as raised:
        Table.model_validate({"sizes": ["x"]})
    assert len(explained(Table, {"sizes": ["x"]}, raised.value)) == 1


def test_where_no_word_is_close_all_are_listed() -> None:
    assert suggestion("zebra", ["ecmp", "source"]) == "known are ecmp, source"
