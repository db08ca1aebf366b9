"""Deletion of objects, and comparison of the bucket with the log."""
