"""What an operator runs: the command line, the embedded stack and the real one."""
