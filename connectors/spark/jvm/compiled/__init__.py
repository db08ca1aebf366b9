"""Rows to Arrow's columns and back, by code that Spark compiles in its executors."""
