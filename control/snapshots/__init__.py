"""Snapshots of a job's state: their form, when they are written, how a log is resumed at one."""
