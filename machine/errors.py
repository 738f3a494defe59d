"""The errors that reach a user. Every package raises these or a subclass of them."""

from __future__ import annotations


class EntrainError(Exception):
    """Something failed; the message says what, where, and what to do about it. Exit status 1."""


class BadInput(EntrainError):
    """What the user gave is wrong; the message names the file, the key and the remedy. Exit status 2."""


class MissingTool(EntrainError):
    """A program, a kernel feature or a right is missing; the message names it and how to get it."""
