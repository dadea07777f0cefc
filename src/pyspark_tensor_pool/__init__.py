"""Found by Spark by its name: `spark.read.format("tensor_pool")` works without registering anything.

An import error here would disable every source of this kind in the session, so there is none.
"""

try:
    from tensor_pool.spark import TensorPoolSource as DefaultSource
except Exception:  # noqa: BLE001, S110 - `tensor_pool.spark.register(spark)` says what is wrong
    pass
else:
    __all__ = ["DefaultSource"]
