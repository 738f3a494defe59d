"""The pair of hosts that hostbpf's tests use."""

from tests.hostbpf.conftest import connect, pair

__all__ = ["connect", "pair"]
