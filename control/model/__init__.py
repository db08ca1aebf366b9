"""The state of a job, and the pure functions that decide and change it: no clock, no I/O."""
