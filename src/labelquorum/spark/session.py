"""Spark itself: that it is there, and how it is started without its traps.

pyspark is imported when it is needed, so that everything else works without it and without Java.
"""

import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labelquorum.errors import LabelError, StateError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


JAVA = 17
"""The oldest Java that Spark 4 runs on."""


def session(master: str | None = None, settings: Mapping[str, Any] | None = None) -> "SparkSession":
    """Start Spark, or join the session that runs.

    Executors run the Python of this process, unless PYSPARK_PYTHON says otherwise. A local master
    listens on 127.0.0.1, unless SPARK_LOCAL_IP says otherwise.

    Parameters
    ----------
    master
        Such as "local[4]"; unless given, what spark-submit or the configuration says.
    settings
        Of Spark, such as {"spark.sql.shuffle.partitions": 8}.
    """
    require_pyspark()
    _require_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if (master or _default_master()).startswith("local"):
        # The name of a host may stand for an address no executor can reach.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if (master or "").startswith("local-cluster"):
        spec = find_spec("pyspark")
        assert spec is not None and spec.origin is not None
        os.environ.setdefault("SPARK_HOME", str(Path(spec.origin).parent))  # its workers need it
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("labelquorum")
    if master is not None:
        builder = builder.master(master)
    usual = {"spark.ui.showConsoleProgress": "false"}  # it would mix with the output
    for name, value in {**usual, **(settings or {})}.items():
        builder = builder.config(name, value)
    with warnings.catch_warnings():
        # Java is started by a fork that runs it at once, which does JAX's threads no harm.
        warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
        return builder.getOrCreate()


def _default_master() -> str:
    """Spark's default master; empty where the environment sets another."""
    elsewhere = ("PYSPARK_GATEWAY_PORT", "MASTER", "SPARK_REMOTE")
    return "" if any(name in os.environ for name in elsewhere) else "local[*]"


def require_pyspark() -> None:
    """Say in one sentence what is missing, if something is."""
    # Spark warns of pandas 3, of which nothing is used here: all goes by Arrow.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    for module in ("pyspark", "pyarrow"):
        if find_spec(module) is None:
            raise StateError(
                f"Spark takes {module}, which is not installed. Run: pip install "
                f"labelquorum[spark], and install Java {JAVA} or newer."
            )


def require_frame(df: object) -> None:
    """Say in one sentence that something is no DataFrame of Spark, if it is not."""
    require_pyspark()
    if not hasattr(df, "sparkSession"):
        raise StateError(
            f"This takes a DataFrame of Spark, such as spark.read.csv gives. Got {df!r:.200}."
        )


def _require_java() -> None:
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home, "bin"))) if home else shutil.which("java")
    where = "in JAVA_HOME" if home else "on PATH"
    if java is None:
        raise StateError(
            f"Spark takes Java {JAVA} or newer, and there is none {where}. Install it (on Debian "
            f"and Ubuntu: apt install openjdk-{JAVA}-jre-headless)."
        )
    reported = subprocess.run([java, "-version"], capture_output=True, text=True).stderr
    version = re.search(r'version "(?:1\.)?(\d+)', reported)
    if version is not None and int(version[1]) < JAVA:
        raise StateError(
            f"Spark takes Java {JAVA} or newer, and {java} is Java {version[1]}. Install a newer "
            "one, and let JAVA_HOME name it."
        )


def cause_of(error: Exception) -> Exception | None:
    """What our own code said on an executor; None where it was Spark itself that failed."""
    if isinstance(error, LabelError | StateError):
        return error
    reported = re.search(r"labelquorum\.errors\.(\w+): (.*)", str(error))
    if reported is None:
        return None
    # Rows are numbered within a shard there, which leads nowhere here.
    sentence = re.sub(r"^Table row \d+: ", "A row: ", reported[2].strip())
    kinds: dict[str, type[Exception]] = {"LabelError": LabelError, "StateError": StateError}
    return kinds.get(reported[1], StateError)(sentence)


def label_columns(df: "DataFrame") -> "DataFrame":
    """The columns that are read of a table of labels, under the names they have here.

    A moment becomes seconds since 1970, a date its text.
    """
    from pyspark.sql import functions
    from pyspark.sql.types import DateType, TimestampNTZType, TimestampType

    from labelquorum.ingest.validate import find_columns

    found = find_columns(df.columns, "DataFrame", "Rename a column.")
    columns = []
    for role, position in found.items():
        field = df.schema.fields[position]
        column = functions.col(f"`{field.name.replace('`', '``')}`")
        if isinstance(field.dataType, TimestampNTZType):
            column = column.cast("timestamp")
        if isinstance(field.dataType, TimestampType | TimestampNTZType):
            column = column.cast("double")
        if isinstance(field.dataType, DateType):
            column = column.cast("string")
        columns.append(column.alias(role))
    return df.select(*columns)
