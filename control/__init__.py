"""What happened to every partition, and who decides what follows. Knows no engine and no object store."""
