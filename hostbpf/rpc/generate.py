"""Make the gRPC modules from the .proto files here: `python -m hostbpf.rpc.generate` (needs grpcio-tools)."""

from __future__ import annotations

from pathlib import Path

from machine.protoc import grpc_modules

PROTOS = sorted(Path(__file__).resolve().parent.glob("*.proto"))


def main() -> None:
    """Write the modules."""
    for proto in PROTOS:
        for path, text in grpc_modules(proto).items():
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path}")


if __name__ == "__main__":
    main()
