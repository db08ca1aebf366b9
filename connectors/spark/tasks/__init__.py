"""On executors: tasks, and the values that are shipped with them."""
