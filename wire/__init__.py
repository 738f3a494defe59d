"""The wire format, defined once: the slot header, and the codecs generated from its definition."""
