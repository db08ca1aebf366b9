"""In the driver: the only folder that speaks to the JVM by Py4J."""
