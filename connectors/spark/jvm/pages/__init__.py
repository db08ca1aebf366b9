"""Spark's own pages: the queries and the tasks that they show."""
