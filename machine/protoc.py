"""Generates modules from .proto files with grpcio-tools, which only developers need."""

from __future__ import annotations

import tempfile
from pathlib import Path

from machine.errors import EntrainError, MissingTool


def grpc_modules(proto: Path) -> dict[Path, str]:
    """Return the modules that protoc generates from `proto`, a file of this checkout: text by path.

    The module of stubs is made only if `proto` has a service.
    Raises MissingTool without grpcio-tools, and EntrainError if protoc rejects the source.
    """
    try:
        from grpc_tools import protoc
    except ModuleNotFoundError as error:
        raise MissingTool("grpcio-tools is missing: pip install -e '.[dev]'") from error
    root = Path(__file__).resolve().parent.parent
    source = proto.resolve().relative_to(root)
    has_service = any(line.startswith("service ") for line in proto.read_text(encoding="utf-8").splitlines())
    with tempfile.TemporaryDirectory() as output:
        kinds = ("python", "pyi", "grpc_python") if has_service else ("python", "pyi")
        outputs = [f"--{kind}_out={output}" for kind in kinds]
        if protoc.main(["protoc", f"-I{root}", *outputs, str(source)]):
            raise EntrainError(f"protoc failed on {source}")
        made = Path(output) / source.parent
        return {proto.parent / path.name: path.read_text(encoding="utf-8") for path in sorted(made.iterdir())}
