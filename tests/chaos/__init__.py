"""Real applications on real services whose processes are killed and paused, from one seed."""
