"""The controller: topology, P4Runtime, routes, state."""
