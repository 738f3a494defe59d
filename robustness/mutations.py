"""Other messages, bytes and JSON documents, made of those that are meant."""

from __future__ import annotations

import contextlib
import random
from typing import Any

from google.protobuf.message import DecodeError

WORDS = (
    *("", "\0", "a" * 300, "../../x", "\ud7ff", "-1", "NaN", "entrain:operator", "10.0.0.1", "0"),
    *("::1", "10.9.0.1/24", "j\n\x1b[2K"),
)
INTEGERS = (0, 1, -1, 2**31 - 1, 2**31, -(2**31), 2**32 - 1, 2**63 - 1, -(2**63), 2**64 - 1, 2**64)
NUMBERS = (0.0, -1.0, 5e-324, 1e308, -1e308, float("nan"), float("inf"), float("-inf"))


def mutated_bytes(rng: random.Random, data: bytes) -> bytes:
    """Change, cut, double or insert a few bytes."""
    changed = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(changed) + 1)
        match rng.randrange(4):
            case 0 if at < len(changed):
                changed[at] = rng.randrange(256)
            case 1:
                del changed[at : at + rng.randrange(1, 9)]
            case 2:
                changed[at:at] = changed[at : at + rng.randrange(1, 9)]
            case _:
                changed[at:at] = rng.randbytes(rng.randrange(1, 5))
    return bytes(changed)


def mutated(rng: random.Random, message: Any) -> Any:
    """Return a message of the same kind: other bytes, where they decode, or other values of some fields."""
    if rng.random() < 0.5:
        with contextlib.suppress(DecodeError):
            return type(message).FromString(mutated_bytes(rng, message.SerializeToString()))
    changed = type(message)()
    changed.CopyFrom(message)
    for _ in range(rng.randrange(1, 3)):
        _mutate_field(rng, changed)
    return changed


def _mutate_field(rng: random.Random, message: Any) -> None:
    described = rng.choice(message.DESCRIPTOR.fields or [None])
    if described is None:
        return
    name = described.name
    many = described.is_repeated
    if described.type == described.TYPE_MESSAGE:
        if described.message_type.GetOptions().map_entry:
            return
        if many:
            held = getattr(message, name)
            if held and rng.random() < 0.7:
                _mutate_field(rng, rng.choice(held))
            else:
                _mutate_field(rng, held.add())
        else:
            _mutate_field(rng, getattr(message, name))
        return
    values = [value(rng, described) for _ in range(rng.choice((1, 2, 100)) if many else 1)]
    with contextlib.suppress(ValueError):  # of a word that is no UTF-8
        if many:
            getattr(message, name).extend(values)
        else:
            setattr(message, name, values[0])


def value(rng: random.Random, described: Any) -> Any:
    """Return a value of a field, out of all that its type has: the ends of the range, and any other."""
    match described.cpp_type:
        case described.CPPTYPE_BOOL:
            return rng.random() < 0.5
        case described.CPPTYPE_DOUBLE | described.CPPTYPE_FLOAT:
            return rng.choice((*NUMBERS, rng.uniform(-1e6, 1e6)))
        case described.CPPTYPE_STRING if described.type == described.TYPE_BYTES:
            return rng.randbytes(rng.randrange(9))
        case described.CPPTYPE_STRING:
            return rng.choice(WORDS)
    unsigned = described.cpp_type in (described.CPPTYPE_UINT32, described.CPPTYPE_UINT64)
    bits = 64 if described.cpp_type in (described.CPPTYPE_INT64, described.CPPTYPE_UINT64) else 32
    low, high = (0, 2**bits - 1) if unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return rng.choice((low, high, low + 1, high - 1, 0, 1, 2, rng.randint(low, high)))


def mutated_json(rng: random.Random, root: Any) -> None:
    """Change one value somewhere in a JSON document."""
    node = root
    while True:
        keys = list(node) if isinstance(node, dict) else range(len(node))
        if not keys:
            return
        key = rng.choice(list(keys))
        inner = node[key]
        if isinstance(inner, (dict, list)) and inner and rng.random() < 0.9:
            node = inner
            continue
        match rng.randrange(4):
            case 0:
                del node[key]
            case 1 if isinstance(inner, int):
                node[key] = inner + rng.choice((-1, 1, 64))
            case 2 if isinstance(node, list):
                node.append(inner)
            case _:
                node[key] = rng.choice((None, True, [], {}, *WORDS, *INTEGERS[:7], root))
        return
