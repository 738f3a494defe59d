"""Mininet topologies and node classes: switch targets, hosts, shaped links."""
