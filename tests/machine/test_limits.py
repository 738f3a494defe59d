"""Errors that come from a limit of the machine name it and the remedy; others stay as they are."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from ebpf.errors import EbpfError
from machine.errors import BadInput, EntrainError
from machine.limits import check_limits, limits_named


def fill_a_disk() -> None:
    with Path("/dev/full").open("wb", buffering=0) as full:
        full.write(b"x")


def open_too_many_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        os.open("/dev/null", os.O_RDONLY)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def take_all_memory() -> None:
    bytearray(1 << 60)


def fail_within_a_group() -> None:
    raise ExceptionGroup("tasks failed", [ValueError(), OSError(errno.ENOSPC, "No space left on device")])


@pytest.mark.parametrize(
    ("fail", "limit", "remedy"),
    [
        (fill_a_disk, "No space left", "make room"),
        (fail_within_a_group, "No space left", "make room"),
        (open_too_many_files, "/dev/null: Too many open files", "ulimit -n"),
        (take_all_memory, "Cannot allocate memory", "ulimit -v"),
    ],
)
def test_a_limit_is_named_with_its_remedy(fail: Callable[[], None], limit: str, remedy: str) -> None:
    with pytest.raises(EntrainError, match=limit) as caught, limits_named():
        fail()
    assert remedy in str(caught.value)


def test_an_error_in_words_gets_the_remedy_once_and_keeps_its_kind() -> None:
    def fail() -> None:
        try:
            fill_a_disk()
        except OSError as error:
            raise BadInput(f"results: cannot be written ({error.strerror})") from error

    wanted = pytest.raises(BadInput, match=r"results: cannot be written .*; make room")
    with wanted as caught, limits_named(), limits_named():
        fail()
    assert str(caught.value).count("make room") == 1


@pytest.mark.parametrize(
    "error",
    [
        ValueError("a value"),
        FileNotFoundError(errno.ENOENT, "No such file"),
        EntrainError("a failure"),
        EbpfError("a map is full", errno=errno.ENOSPC),
        ExceptionGroup("tasks failed", [ValueError()]),
    ],
)
def test_other_errors_stay_as_they_are(error: Exception) -> None:
    before = str(error)
    with pytest.raises(type(error)) as caught, limits_named():
        raise error
    assert caught.value is error
    assert str(error) == before


@pytest.mark.parametrize(
    ("which", "few", "remedy"),
    [(resource.RLIMIT_NOFILE, 31, "ulimit -n"), (resource.RLIMIT_AS, 1 << 40, "ulimit -v")],
)
def test_too_low_a_limit_is_named_before_it_is_reached(which: int, few: int, remedy: str) -> None:
    check_limits(2 << 20)
    soft, hard = resource.getrlimit(which)
    resource.setrlimit(which, (few, hard))
    try:
        with pytest.raises(EntrainError, match=remedy):
            check_limits(2 << 20)
    finally:
        resource.setrlimit(which, (soft, hard))
