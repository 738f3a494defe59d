"""gRPC of agents and emulated switches: messages, callers, and errors."""
