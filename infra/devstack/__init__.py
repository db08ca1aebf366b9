"""Kafka and MinIO on this machine, for development and tests."""
