"""The shuffle masters: of one driver's job, and of a group's jobs."""
