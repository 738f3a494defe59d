"""One rule says whether a figure reproduces a paper's."""

from __future__ import annotations

import pytest

from entrain.results.verdicts import Verdict, kind_of, verdict


@pytest.mark.parametrize(
    ("claim", "paper", "here", "expected"),
    [
        ("a against b", "-21.4 %", "-14.7 %", "reproduced"),  # within a third of the effect
        ("a against b", "-37.3 %", "-64.2 %", "partly"),  # the same side, but much more
        ("a against b", "at least -15 %", "-6.8 %", "partly"),
        ("a against b", "at least -15 %", "-6.8 ± 9.5 %", "not"),  # its interval contains none
        ("a against b", "at least -15 %", "-1.5 ± 1.2 %", "not"),  # a tenth of the effect
        ("a against b", "-65.65 %", "+7.6 %", "not"),
        ("a", "× 5.1", "× 4.02 ± 0.14", "reproduced"),
        ("a", "1.5x", "1.03x", "not"),
        ("a", "up to 1.9", "1.40 to 1.47", "partly"),
        ("a", "up to 28.87", "2.28 to 155.72", "partly"),  # one end is far more, the other hardly anything
        ("a", "1.28, 1.30", "1.21, 1.21", "reproduced"),
        ("a", "1.17, 0.94", "1.09, 0.95", "partly"),
        ("a", "1.31, 0.93", "1.33, 0.94 (reno); 1.30, 1.10 (dctcp)", "partly"),
        ("a", "1.02, 0.99", "0.99, 1.03", "reproduced"),  # no effect, in both
        ("a", "near 1", "1.001 to 1.097", "partly"),
        ("a takes at most (ms)", "6.2", "0.25 to 0.867", "reproduced"),  # lower is as good
        ("a takes at most (ms)", "6.2", "11.1 to 15.8", "partly"),
        ("a", "at most 2.75", "2.67", "reproduced"),
        ("iterations until interleaved", "30", "- (converged: 0 of 30 runs)", "not"),
        ("share", "78.3 %", "60.0 %", "partly"),
        ("marks", "27 to 33 times fewer", "253 and 0", "reproduced"),
        ("marks", "27 to 33 times fewer", "253 and 20", "partly"),
        ("marks", "27 to 33 times fewer", "253 and 100", "not"),
    ],
)
def test_verdicts_follow_from_the_figures(claim: str, paper: str, here: str, expected: Verdict) -> None:
    assert verdict(paper, here, kind_of(claim, paper)) == expected


def test_a_text_without_figures_is_refused() -> None:
    with pytest.raises(ValueError, match="has no figure"):
        verdict("faster", "1.2", "ratio")
