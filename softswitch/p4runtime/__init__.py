"""The switch as a controller sees it: P4Runtime's service and its entities."""
