"""The agent of a host: what it owns, its API, and who may use that."""
