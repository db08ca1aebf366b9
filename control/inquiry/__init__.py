"""Questions to a log, for those who decide nothing."""
