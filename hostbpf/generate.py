"""Makes the agent's gRPC modules from `agent.proto`: `python -m hostbpf.generate` (needs grpcio-tools)."""

from __future__ import annotations

import tempfile
from pathlib import Path

from machine.errors import EntrainError, MissingTool

_HERE = Path(__file__).resolve().parent


def modules() -> dict[Path, str]:
    """What protoc makes of `agent.proto`, by path; raises MissingTool without grpcio-tools."""
    try:
        from grpc_tools import protoc
    except ModuleNotFoundError as error:
        raise MissingTool("grpcio-tools is missing: pip install -e '.[dev]'") from error
    with tempfile.TemporaryDirectory() as output:
        outputs = [f"--{kind}_out={output}" for kind in ("python", "pyi", "grpc_python")]
        source = f"{_HERE.name}/agent.proto"
        if protoc.main(["protoc", f"-I{_HERE.parent}", *outputs, source]):
            raise EntrainError(f"protoc failed on {source}")
        made = Path(output) / _HERE.name
        return {_HERE / path.name: path.read_text() for path in sorted(made.iterdir())}


def main() -> None:
    """Write the modules."""
    for path, text in modules().items():
        path.write_text(text)
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
