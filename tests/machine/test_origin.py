"""Where a result comes from: the version, the day, the machine."""

from __future__ import annotations

from dataclasses import replace

from machine.origin import here, listed


def test_the_origin_names_version_and_machine() -> None:
    origin = here()
    assert origin.version[0].isdigit()
    assert origin.processors >= 1
    assert origin.version in str(origin)
    assert origin.ended[:10] in str(origin)


def test_origins_are_listed_once() -> None:
    one = replace(here(), version="1.0", ended="2026-01-02T03:04:05+00:00")
    later = replace(one, ended="2026-01-05T03:04:05+00:00")
    assert listed([one, one]) == "version 1.0, 2026-01-02"
    assert listed([later, None, one]) == "version 1.0, 2026-01-02 to 2026-01-05"
    assert listed([None]) == "version not recorded"
