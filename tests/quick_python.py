"""Let the Python workers of tests start in a fraction of the time.

Spark's daemon takes PySpark from a zip, which Python compiles anew in each of them, and each worker
that it forks loads the same packages. This daemon takes the PySpark that is installed, and has
loaded what workers need.
"""

import sys
from importlib import import_module

_NEEDED = ("pandas", "pyspark.worker", "headgate.connectors.spark.tasks.worker")


def main() -> None:
    sys.path[:] = [place for place in sys.path if not place.endswith(".zip")]
    for module in _NEEDED:
        import_module(module)
    import_module("pyspark.daemon").manager()


if __name__ == "__main__":
    main()
