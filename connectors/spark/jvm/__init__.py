"""In the driver: the only folder that calls the JVM through Py4J."""
