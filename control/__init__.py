"""What happened to every partition, and who decides. Knows no engine and no object store."""
