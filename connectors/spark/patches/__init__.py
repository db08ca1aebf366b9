"""In the driver: replacements for methods of PySpark in attached sessions."""
