"""This package makes, schedules and reads snapshots of a job's state, and finds where to resume its
log."""
