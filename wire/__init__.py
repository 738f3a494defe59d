"""The wire format, defined once: the slot header, and the codecs generated from its definition."""

from pathlib import Path

DEFINITION = Path(__file__).with_name("slot_header.toml")
