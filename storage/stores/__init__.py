"""The object-store port, its stores, and the retries of requests."""
