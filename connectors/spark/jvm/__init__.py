"""In the driver: the only folder that imports Py4J."""
