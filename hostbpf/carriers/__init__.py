"""Carriers: packets with a slot header, and what their round trips tell of clocks."""
