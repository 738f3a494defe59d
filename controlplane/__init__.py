"""The controller: topology, P4Runtime, routes and state."""
