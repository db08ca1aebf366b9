"""An application that asks queries: `python asking.py tables queries.json answers.pickle`."""

import json
import pickle
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession


def main(tables: str, queries: str, answers: str) -> None:
    spark = SparkSession.builder.getOrCreate()
    for path in Path(tables).glob("*.parquet"):
        spark.read.parquet(str(path)).createOrReplaceTempView(path.stem)
    begun_s, rows = time.monotonic(), {}
    for number, text in json.loads(Path(queries).read_text()).items():
        rows[number] = [tuple(row) for row in spark.sql(text).collect()]
    is_alone = "headgate" not in sys.modules
    took_s = time.monotonic() - begun_s
    Path(answers).write_bytes(pickle.dumps((rows, took_s, is_alone)))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
