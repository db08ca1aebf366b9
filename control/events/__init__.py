"""The events of a log, and their binary form."""
