"""The settings under which random queries run, as rules of their grammar.

Each name stands for one setting and the values that may be drawn for it; an empty text keeps
Spark's default. The first value is the simplest, and a value that is listed several times is
likelier.
"""

from __future__ import annotations


def _one_of(setting: str, *values: str) -> tuple[str, ...]:
    """Return a text for each value, which sets it; an empty value keeps Spark's default."""
    return tuple(f"set spark.sql.{setting}={value};" if value else "" for value in values)


def _seldom(setting: str, *values: str) -> tuple[str, ...]:
    """Return texts for a setting that only one query in ten has."""
    return _one_of(setting, *[""] * (9 * len(values)), *values)


# Settings for how a stage reads its exchanges, and for when the rest is planned again.
READING = {
    "adaptive": _one_of("adaptive.enabled", "", "", "TRUE", "false"),
    "broadcasts": _one_of("autoBroadcastJoinThreshold", "-1", "-1", "-1", "", "900", "4000"),
    "parts": _one_of("shuffle.partitions", "2", "3", "5", "8", "8"),
    "target": _one_of("adaptive.advisoryPartitionSizeInBytes", "", "", "2KB", "6KB"),
    "least": _one_of("adaptive.coalescePartitions.minPartitionSize", "", "1KB", "1KB", "1KB"),
    "least parts": _seldom("adaptive.coalescePartitions.minPartitionNum", "1", "3"),
    "spread": _one_of("adaptive.coalescePartitions.parallelismFirst", "", "", "false"),
    "skew": _one_of("adaptive.skewJoin.skewedPartitionThresholdInBytes", "", "1KB", "1KB"),
    "times": _one_of("adaptive.skewJoin.skewedPartitionFactor", "", "1.1", "1.1d"),
    "unions": _one_of("unionOutputPartitioning", "", "false"),
    "sorted": _seldom("join.preferSortMergeJoin", "false"),
    "hashed": _seldom("adaptive.maxShuffledHashJoinLocalMapThreshold", "1MB"),
    "filled": _seldom("adaptive.nonEmptyPartitionRatioForBroadcastJoin", "0.9"),
    "forced": _seldom("adaptive.forceOptimizeSkewedJoin", "true"),
    "together": _seldom("requireAllClusterKeysForCoPartition", "false"),
    "clustered": _seldom("requireAllClusterKeysForDistribution", "true"),
}
_OPTIMIZER = "org.apache.spark.sql.catalyst.optimizer."
# Settings that a user may have for reasons other than exchanges.
SESSION = {
    "ansi": _one_of("ansi.enabled", "", "", "", "false"),
    "shown complex": _one_of("legacy.castComplexTypesToString.enabled", "", "", "", "true"),
    "parsers": _one_of("legacy.timeParserPolicy", "", "", "", "", "LEGACY", "LEGACY", "EXCEPTION"),
    "zone": _one_of("session.timeZone", "", "", "America/Los_Angeles", "Asia/Kathmandu"),
    "repeated keys": _one_of("mapKeyDedupPolicy", "", *["LAST_WIN"] * 7),
    "plan text": _seldom("maxPlanStringLength", "100"),
    "fields text": _seldom("debug.maxToStringFields", "2"),
    "fused": _one_of("codegen.wholeStage", "", "false"),
    # With NO_CODEGEN Spark's own `max` of strings is wrong: later rows overwrite its memory.
    "factory": _seldom("codegen.factoryMode", "CODEGEN_ONLY"),
    "fused fields": _seldom("codegen.maxFields", "2"),
    "batch": _seldom("execution.arrow.maxRecordsPerBatch", "7"),
    "cache batch": _seldom("inMemoryColumnarStorage.batchSize", "5"),
    "hash of maps": _seldom("legacy.allowHashOnMapType", "true"),
    "excluded": _seldom(
        "optimizer.excludedRules",
        f"{_OPTIMIZER}ConvertToLocalRelation",
        f"{_OPTIMIZER}InferFiltersFromConstraints",
        f"{_OPTIMIZER}PropagateEmptyRelation,{_OPTIMIZER}PushDownPredicates",
        f"{_OPTIMIZER}CollapseProject,{_OPTIMIZER}ColumnPruning",
    ),
    "merge buffer": _seldom("sortMergeJoinExec.buffer.in.memory.threshold", "3"),
    "window buffer": _seldom("windowExec.buffer.in.memory.threshold", "3"),
    "fallback": _seldom("objectHashAggregate.sortBased.fallbackThreshold", "2"),
    "hash aggregates": _seldom("execution.useHashAggregateExec", "false"),
    "dealt sorted": _seldom("execution.sortBeforeRepartition", "false"),
    "reused": _seldom("exchange.reuse", "false"),
    "subqueries": _seldom("execution.reuseSubquery", "false"),
    "precision": _seldom("decimalOperations.allowPrecisionLoss", "false"),
    "null sizes": _seldom("legacy.sizeOfNull", "false"),
    "costs": _seldom("cbo.enabled", "true"),
    "cased": _seldom("caseSensitive", "true"),
}
