"""The event log in memory: for tests, the simulation and the service `local-files`."""
