"""Optical circuit switches: a model, the manager of circuits, and drivers."""
