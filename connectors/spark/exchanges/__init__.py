"""In the driver: exchanges, their transports, reruns, and the lifetimes of their results."""
