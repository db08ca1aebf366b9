"""Deleting objects, and comparing the bucket with the log."""
