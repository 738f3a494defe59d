"""P4Runtime's entities: how each is read and written."""
