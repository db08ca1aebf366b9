"""The events of the log and their binary encoding."""
