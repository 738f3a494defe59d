"""What runs on this machine and must not outlive us: records of owned resources, errors, subprocesses."""
