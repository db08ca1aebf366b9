"""Connectors: one folder for each engine that shuffles through Headgate."""
