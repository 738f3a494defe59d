"""The modules beside hostbpf's protocol definitions are what protoc makes of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from hostbpf.rpc.generate import PROTOS
from machine.errors import MissingTool
from machine.protoc import grpc_modules


@pytest.mark.parametrize("proto", PROTOS, ids=lambda proto: str(proto.name))
def test_generated_modules_are_fresh(proto: Path) -> None:
    try:
        made = grpc_modules(proto)
    except MissingTool as error:
        pytest.skip(str(error))
    for path, text in made.items():
        assert path.read_text() == text, f"{path.name}: run python -m hostbpf.rpc.generate"
