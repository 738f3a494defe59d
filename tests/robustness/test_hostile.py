"""A hostile host in short: what its carriers count is bounded, and each refusal is counted by reason."""

from __future__ import annotations

import pytest

from ebpf.struct_ops import available_congestion_controls
from hostbpf.mltcp import VARIANTS
from tests.short import figures

TARGETS = [
    ("softswitch", ["fill", "plans", "epochs", "version"]),
    pytest.param("bmv2", ["epochs"], marks=pytest.mark.bmv2),
]


REASONS: dict[str, tuple[set[str], set[str]]] = {
    "fill": ({"LOAD"}, set()),
    "plans": ({"LOAD"}, set()),
    "epochs": ({"SLOT"}, set()),
    "version": (set(), {"VERSION"}),
}
"""By kind of attack, why the hostile host's carriers are refused and dropped, each of them once."""


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.parametrize(("target", "kinds"), TARGETS)
def test_forged_carriers_are_refused_and_what_counts_is_bounded(target: str, kinds: list[str]) -> None:
    if VARIANTS[0] in available_congestion_controls():
        pytest.skip("another process of this machine holds the congestion controls")
    found = figures(
        "robustness", "hostile", "--seconds", "0.6", "--rounds", "1", "--target", target, "--kinds", *kinds
    )
    attacks = found["attacks"]
    assert list(attacks) == kinds
    for each in attacks.values():
        assert each["sent"] > 0
        assert all(times["iterations"] > 0 for times in each["jobs"].values())
    for kind, each in attacks.items():
        refused, dropped = REASONS[kind]
        assert set(each["refused"]) == refused
        assert set(each["dropped"]) == dropped
        assert sum(each["refused"].values()) + sum(each["dropped"].values()) == each["sent"]
        limit = found["goals"]["counted_mbps_max"] if kind == "fill" else 0
        assert 0 <= each["counted_mbps_max"] <= limit
    assert found["refused_of_others"].keys() <= {"SLOT", "LOAD"}  # on a busy machine some are late or lost
