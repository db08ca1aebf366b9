"""The event log in this process's memory, for tests and the simulation."""
