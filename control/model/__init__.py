"""This package holds the state of a job, and the pure functions that decide and change it."""
