"""The papers' experiments: what each varies, how one point of it is run, and what the papers report."""
