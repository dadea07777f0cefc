"""Recordings in Spark: a row a frame that refers to its pixels, and numpy functions on those pixels in Spark's workers."""

try:
    import pyspark  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "tensor_pool.spark needs the package pyspark\n\nhint: pip install 'shm-tensor-pool[spark]'", name=error.name
    ) from error

from tensor_pool.spark.frames import map_frames
from tensor_pool.spark.session import register, spark_session
from tensor_pool.spark.source import TensorPoolSource

__all__ = ["TensorPoolSource", "map_frames", "register", "spark_session"]
