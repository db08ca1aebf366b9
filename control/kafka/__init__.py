"""The event log on Kafka. Only this folder imports Kafka's client library."""
