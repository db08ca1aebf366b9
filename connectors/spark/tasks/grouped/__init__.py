"""On executors: call users' functions for groups of rows."""
