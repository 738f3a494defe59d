"""An embedded P4 target: runs BMv2 JSON of p4c in the kernel as eBPF and speaks P4Runtime."""
