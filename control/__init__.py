"""What happened to every partition, and who decides. Knows no engine and no object store."""

__version__ = "0.1.0"
