"""In the driver: the methods of PySpark that are replaced in an attached session."""
