"""The demo's Spark job: mean, deviation and rate of every second of a recording, computed on mapped frames in Spark's workers."""

from __future__ import annotations

import json
import sys
from typing import Any

from py4j.protocol import Py4JNetworkError
from pyspark.sql import functions

from tensor_pool.spark import map_frames, register, spark_session

SCHEMA = "epoch long, seq long, timestamp_ns long, mean double, deviation double, carries_seq boolean"


def measure(frame: Any) -> dict[str, Any]:
    """Runs in Spark's workers, once a frame."""
    from tensor_pool.stamp import carries_seq

    pixels = frame.array
    return {
        "epoch": frame.epoch,
        "seq": frame.seq,
        "timestamp_ns": frame.timestamp_ns,
        "mean": float(pixels.mean()),
        "deviation": float(pixels.std()),
        "carries_seq": carries_seq(pixels, frame.seq),
    }


def analyse(recording: str) -> dict[str, Any]:
    """Frames, those that carry their own seq, and a row for each second."""
    with spark_session("tensor-pool-demo") as spark:
        register(spark)
        frames = spark.read.format("tensor_pool").load(recording)
        measured = map_frames(frames, measure, SCHEMA).cache()
        total, good = measured.agg(functions.count("*"), functions.sum(functions.col("carries_seq").cast("long"))).first() or (0, 0)
        begin = measured.agg(functions.min("timestamp_ns")).first()
        begin_ns = int(begin[0]) if begin is not None and begin[0] is not None else 0
        second = ((functions.col("timestamp_ns") - begin_ns) / 1_000_000_000).cast("long")
        rows = (
            measured.groupBy(second.alias("second"))
            .agg(
                functions.count("*").alias("frames"),
                functions.avg("mean").alias("mean"),
                functions.avg("deviation").alias("deviation"),
            )
            .orderBy("second")
            .collect()
        )
        return {"frames": total, "frames_with_their_seq": int(good or 0), "seconds": [row.asDict() for row in rows]}


def reason(error: Exception) -> str:
    """The first lines of what Spark says; the stacks of its own threads, which follow, are pages long."""
    words = str(error).partition("\n\tat ")[0] or type(error).__name__
    if isinstance(error, ConnectionError | Py4JNetworkError):
        return f"the Java process that Spark runs in is gone: {words}"
    return words


def main() -> int:
    try:
        said = {"event": "summary", **analyse(sys.argv[1])}
    except Exception as error:  # noqa: BLE001 - whatever it is, the demo says it in words
        said = {"event": "failed", "why": reason(error)}
    print(json.dumps(said), flush=True)
    return 0 if said["event"] == "summary" else 1


if __name__ == "__main__":
    sys.exit(main())
