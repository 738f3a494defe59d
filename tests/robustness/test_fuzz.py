"""Mutated input, in short: it is answered or refused, and nothing else comes of it."""

from __future__ import annotations

import random

import pytest
from google.protobuf.descriptor import FieldDescriptor

from controlplane import api_pb2 as api
from hostbpf.rpc import agent_pb2 as agent_pb
from robustness.fuzz import TARGETS, WITH_ROOT, fuzz
from robustness.mutations import value

SHORT = {"p4json": 60, "controller": 40}
"""What a test tries of the slow ones."""
BMV2 = {"programs", "packets"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.root] if name in WITH_ROOT else [])
        for name in sorted(TARGETS.keys() - BMV2)
    ],
)
def test_mutated_input_is_answered_or_refused(name: str) -> None:
    found = fuzz([name], SHORT.get(name, 300), seed=1)[name]
    assert found.tried == SHORT.get(name, 300)
    assert 0 < found.refused < found.tried
    assert not found.accidents, "\n".join(found.what)


@pytest.mark.parametrize(
    ("field", "ends"),
    [
        (api.Event.DESCRIPTOR.fields_by_name["unix_ns"], {-(2**63), 2**63 - 1}),
        (agent_pb.Pace.DESCRIPTOR.fields_by_name["period_ns"], {0, 2**64 - 1}),
        (agent_pb.Flow.DESCRIPTOR.fields_by_name["source_port"], {0, 2**32 - 1}),
    ],
)
def test_each_field_gets_the_ends_of_its_type(field: FieldDescriptor, ends: set[int]) -> None:
    rng = random.Random(1)
    drawn = {value(rng, field) for _ in range(1000)}
    assert {min(drawn), max(drawn)} == ends
    assert len(drawn) > 50
