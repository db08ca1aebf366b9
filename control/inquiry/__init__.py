"""This package answers questions about a log. It decides nothing."""
