"""Bytes on the wire, defined once: the slot header and the codecs made from its definition."""
