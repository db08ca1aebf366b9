"""The tools of an operator: the command line, the embedded stack and the local stack."""
