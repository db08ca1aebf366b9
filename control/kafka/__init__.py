"""The event log on Kafka: the only folder that imports its client."""
