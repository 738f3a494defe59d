"""The pages of docs/results/ follow from the published rows and the claims."""

from __future__ import annotations

from pathlib import Path

import pytest

from entrain.results import claimed, published
from entrain.results.claimed import Claim, judged
from entrain.results.pivots import Figure, Pivot, tables
from machine.errors import BadInput
from machine.rows import How, Row, chosen, joined
from simulation.experiments.registry import EXPERIMENTS


def row(value: float, policy: str, gbps: int = 10, figure: str = "mean_jct_s", how: How = "simulated") -> Row:
    return Row("e", how, joined({"gbps": gbps}), policy, "", "", "", figure, None, value)


FIGURES = {
    "mean_jct_s": Figure(heading="mean JCT (s)", form=".1f"),
    "share": Figure(heading="share", form=".0f", times=100, suffix=" %"),
}
ROWS = [
    row(40.0, "slots"),
    row(50.0, "mcs"),
    row(20.0, "slots", 24),
    row(40.0, "mcs", 24),
    row(0.5, "slots", figure="share"),
    row(45.0, "mcs", how="paper"),
]


def test_figures_are_columns() -> None:
    pivot = Pivot(figures=("mean_jct_s", "share"), where={"gbps": "10"})
    ((_, head, body),) = tables(pivot, ROWS, FIGURES, {})
    assert head == ["policy", "mean JCT (s)", "share"]
    assert body == [["slots", "40.0", "50 %"], ["mcs", "50.0 (45.0)", ""]]


def test_values_of_a_parameter_are_columns_or_tables() -> None:
    ((_, head, body),) = tables(Pivot(figures=("mean_jct_s",), columns="gbps"), ROWS, FIGURES, {})
    assert (head, body[0]) == (["policy", "10", "24"], ["slots", "40.0", "20.0"])
    split = Pivot(caption="At {gbps} Gbit/s", figures=("mean_jct_s",), each=("gbps",))
    assert [caption for caption, _, _ in tables(split, ROWS, FIGURES, {})] == ["At 10 Gbit/s", "At 24 Gbit/s"]


def claim(**keys: object) -> Claim:
    common = {"id": "x", "paper": "slots", "figure": "1", "text": "t", "experiment": "e"}
    return Claim.model_validate({**common, **keys})


@pytest.mark.parametrize(
    ("keys", "here", "verdict"),
    [
        ({"show": "change", "value": "-20 %", "gbps": "10"}, "-20.0 %", "reproduced"),
        ({"show": "change", "value": "-20 %"}, "-50.0 to -20.0 %", "partly"),
        ({"show": "ratio", "value": "2x", "gbps": "24"}, "2.00", "reproduced"),
        ({"show": "change", "value": "+20 %", "gbps": "10"}, "-20.0 %", "not"),
    ],
)
def test_a_claim_is_computed_from_rows_and_judged(keys: dict[str, str], here: str, verdict: str) -> None:
    gbps = {"gbps": keys.pop("gbps")} if "gbps" in keys else {}
    of = {"figure": "mean_jct_s", "policy": "slots", **gbps}
    result = judged(claim(**keys, of=of, against={"policy": "mcs"}), {"simulated/e": ROWS})
    assert result is not None
    assert (result.here, result.verdict) == (here, verdict)


def test_a_claim_without_rows_has_no_value() -> None:
    of = {"figure": "mean_jct_s", "policy": "none"}
    assert judged(claim(of=of), {"simulated/e": ROWS}) is None
    assert judged(claim(of=of), {}) is None
    against = {"policy": "none"}
    assert (
        judged(claim(of={"figure": "mean_jct_s", "policy": "mcs"}, against=against), {"simulated/e": ROWS})
        is None
    )


def test_two_claims_with_one_id_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "claims.toml"
    one = '[[claim]]\nid = "a"\npaper = "slots"\nfigure = "1"\ntext = "t"\nexperiment = "e"\nof = {}\n'
    path.write_text(one * 2)
    with pytest.raises(BadInput, match="2 claims have the id 'a'"):
        claimed.claims(path)


def test_every_experiment_has_a_section_and_published_rows() -> None:
    rows = published.read()
    shown = [section.experiment for section in published.sections() if section.experiment]
    assert sorted(shown) == sorted(EXPERIMENTS)
    assert {f"simulated/{name}" for name in shown} <= rows.keys()


def test_the_pages_are_what_the_rows_give(tmp_path: Path) -> None:
    published.check_pages()
    published.write(tmp_path)
    published.check_pages(tmp_path)
    page = tmp_path / "results" / "parrot.md"
    page.write_text(page.read_text(encoding="utf-8").replace("| 2.67 |", "| 2.68 |"), encoding="utf-8")
    with pytest.raises(BadInput, match=r"parrot\.md: is not what"):
        published.check_pages(tmp_path)


def test_every_claim_has_a_value_from_rows_that_name_their_origin() -> None:
    rows = published.read()
    for each in claimed.claims():
        result = judged(each, rows)
        assert result is not None, f"claim {each.id} selects no rows of {each.experiment}"
        assert all(one.version and one.command for one in result.rows)


def test_every_table_of_a_page_has_cells() -> None:
    rows = published.read()
    for section in published.sections():
        if not (shown := section.rows(rows)):
            continue  # a live experiment that has not been measured
        for pivot in section.table:
            known = {one.figure for one in chosen(shown, pivot.where)}
            known |= {figure.removesuffix("_least") for figure in known}
            assert known & set(pivot.figures), f"{section.names}: no rows of {pivot.figures}"


def test_publishing_part_of_an_experiment_cannot_take_a_claims_value(tmp_path: Path) -> None:
    known = published.read()["simulated/parrot-jct"]
    published.publish({"simulated/parrot-jct": known}, tmp_path)
    part = [one for one in known if one.policy != "aalo"]
    with pytest.raises(BadInput, match="claims parrot-against-aalo-10g would lose their values"):
        published.publish({"simulated/parrot-jct": part}, tmp_path)
    assert published.read(tmp_path)["simulated/parrot-jct"] == known


def test_publishing_all_rows_again_keeps_each(tmp_path: Path) -> None:
    known = {name: [row for row in rows if row.how != "paper"] for name, rows in published.read().items()}
    published.publish(known, tmp_path)
    assert published.read(tmp_path) == known


def test_published_rows_stay_small_enough_for_a_repository() -> None:
    sizes = [path.stat().st_size for path in published.ROWS.rglob("*.csv")]
    assert sum(sizes) < 2 * 2**20 and max(sizes) < 2**18
