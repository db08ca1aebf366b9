"""The numbers of all jobs of a log, for Prometheus."""
