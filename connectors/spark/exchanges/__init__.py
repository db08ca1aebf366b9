"""In the driver: one exchange, and how long its result lives."""
