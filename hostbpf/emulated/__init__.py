"""Emulated switches: processes that keep load tables for switches which are not programmable."""
