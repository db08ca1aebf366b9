"""The connector for Spark: the only folder that imports pyspark."""
