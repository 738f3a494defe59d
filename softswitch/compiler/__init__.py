"""From BMv2 JSON to a BPF object: reading, layouts, C."""
