"""The errors that reach a user. Every package raises these or their subclasses."""

from __future__ import annotations


class EntrainError(Exception):
    """Something failed. The message says what, where, and what to do about it. Exit status 1."""


class BadInput(EntrainError):
    """The user's input is wrong. The message names the file, the key and the remedy. Exit status 2."""


class MissingTool(EntrainError):
    """A program, kernel feature or privilege is missing. The message names it and says how to get it."""
