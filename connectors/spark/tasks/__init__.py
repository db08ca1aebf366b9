"""On executors: the tasks, and the values that travel with them."""
