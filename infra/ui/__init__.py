"""The live page: `headgate ui`. It reads the log, and writes nothing to it."""
