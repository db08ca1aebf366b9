"""The command `headgate`."""
