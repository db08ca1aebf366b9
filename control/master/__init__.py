"""This package runs the shuffle masters: a driver's own, and those of a group of processes."""
