"""What root relies on is made by root alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from machine.errors import EntrainError
from machine.state import locked, own_directory


@pytest.mark.parametrize("umask", [0, 0o077])
@pytest.mark.parametrize("mode", [0o755, 0o700])
def test_a_directory_has_its_mode_whatever_the_umask(tmp_path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        made = own_directory(tmp_path / "a", mode)
    finally:
        os.umask(before)
    assert made.stat().st_mode & 0o777 == mode
    assert own_directory(tmp_path / "a", mode) == made


def test_a_directory_that_others_may_change_is_refused_with_the_remedy(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    with pytest.raises(EntrainError, match=f"mode 1777.*chmod go-w {tmp_path}"):
        own_directory(tmp_path)


def test_what_is_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("file", "link"):
        with pytest.raises(EntrainError, match=f"{name}: is not a directory"):
            own_directory(tmp_path / name)


@pytest.mark.root
def test_what_belongs_to_another_user_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    lock = tmp_path / "lock"
    lock.write_text("")
    for path in (other, lock):
        os.chown(path, 65534, 65534)
    with pytest.raises(EntrainError, match=f"{other}: belongs to nobody"):
        own_directory(other)
    with pytest.raises(EntrainError, match=f"{lock}: belongs to nobody"), locked(lock):
        pass
