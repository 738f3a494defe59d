"""gRPC modules from .proto files, with grpcio-tools, which only developers need."""

from __future__ import annotations

import tempfile
from pathlib import Path

from machine.errors import EntrainError, MissingTool


def grpc_modules(proto: Path) -> dict[Path, str]:
    """What protoc makes of `proto`, a file of a top-level package: text by path, beside the source.

    Raises MissingTool without grpcio-tools, EntrainError when protoc refuses the source.
    """
    try:
        from grpc_tools import protoc
    except ModuleNotFoundError as error:
        raise MissingTool("grpcio-tools is missing: pip install -e '.[dev]'") from error
    package = proto.parent
    with tempfile.TemporaryDirectory() as output:
        outputs = [f"--{kind}_out={output}" for kind in ("python", "pyi", "grpc_python")]
        source = f"{package.name}/{proto.name}"
        if protoc.main(["protoc", f"-I{package.parent}", *outputs, source]):
            raise EntrainError(f"protoc failed on {source}")
        made = Path(output) / package.name
        return {package / path.name: path.read_text() for path in sorted(made.iterdir())}
