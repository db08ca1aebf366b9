"""Headgate: a shuffle for PySpark whose data outlives every executor."""
