"""A local Spark that finds this Python, talks over Unix sockets and leaves nothing in the working directory."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

import tensor_pool
from tensor_pool.errors import ConfigError
from tensor_pool.spark.source import TensorPoolSource

OLDEST_JAVA: Final = 17
LONGEST_SOCKET_DIRECTORY: Final = 61
_QUIET: Final = """rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = spark: %p %c{1}: %m%n%ex
"""


def register(spark: SparkSession) -> None:
    """Make `format("tensor_pool")` known to this session. Spark finds it by itself where the package is installed."""
    spark.dataSource.register(TensorPoolSource)


@contextmanager
def spark_session(
    name: str = "tensor_pool", *, master: str = "local[2]", config: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """A local session with the settings that recordings want. It is stopped, and its files are removed, when the block ends.

    Where a session is active already, that one is used and left running.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        register(active)
        yield active
        return
    check_java(os.environ)
    with ExitStack() as directories:
        workspace, sockets = (
            directories.enter_context(_temporary_directory(parent)) for parent in (tempfile.gettempdir(), _short_directory())
        )
        with _environment(_worker_environment()):
            builder = SparkSession.builder.master(master).appName(name)
            for key, value in {**_settings(workspace, sockets), **(config or {})}.items():
                builder = builder.config(key, value)
            spark = builder.getOrCreate()
        try:
            register(spark)
            yield spark
        finally:
            spark.stop()


@contextmanager
def _temporary_directory(parent: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tensor-pool-spark-", dir=parent, ignore_cleanup_errors=True) as name:
        yield Path(name)


def _short_directory() -> str:
    """A place for sockets: their paths are bounded, and Spark adds a name of its own."""
    usual = tempfile.gettempdir()
    return usual if len(usual) + len("/tensor-pool-spark-12345678") <= LONGEST_SOCKET_DIRECTORY else "/tmp"  # noqa: S108 - a directory is made in it


def check_java(environ: Mapping[str, str]) -> None:
    """A `ConfigError` that says which package to install when Spark would find no Java that it can use."""
    hint = "apt-get install openjdk-17-jre-headless"
    home = environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java", path=environ.get("PATH", ""))
    if not java or not os.access(java, os.X_OK):
        where = f"JAVA_HOME is {home}, where there is none" if home else "there is none in PATH"
        raise ConfigError(f"Spark needs Java {OLDEST_JAVA} or newer: {where}", key="JAVA_HOME", value=home, hint=hint)
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, timeout=60).stderr  # noqa: S603
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    if found is not None and int(found[1]) < OLDEST_JAVA:
        raise ConfigError(f"Spark needs Java {OLDEST_JAVA} or newer: {java} is {found[1]}", key="JAVA_HOME", value=home, hint=hint)


def _worker_environment() -> dict[str, str]:
    """The workers run this interpreter and import this package, installed or not."""
    package_root = str(Path(tensor_pool.__path__[0]).parent)
    paths = [package_root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
    }


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {key: os.environ.get(key) for key in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value


def _settings(workspace: Path, sockets: Path) -> dict[str, str]:
    quiet = workspace / "log4j2.properties"
    quiet.write_text(_QUIET)
    java_options = f"-Dlog4j2.configurationFile={quiet.as_uri()} -Dderby.system.home={workspace} -Djava.io.tmpdir={workspace}"
    return {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": java_options,
        "spark.driver.host": "127.0.0.1",
        "spark.executorEnv.PYTHONPATH": _worker_environment()["PYTHONPATH"],
        "spark.local.dir": str(workspace / "local"),
        "spark.python.unix.domain.socket.dir": str(sockets),
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.execution.arrow.maxBytesPerBatch": "4m",
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(workspace / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
