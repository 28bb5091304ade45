"""Add up revenue by country and day: a batch asset in one graph with the tables that a stream keeps.

A day is made when the hours it adds up are closed, and again when late data or a rewind has touched them, and no other day is. It reads at
one position, named in its metadata: read again at that position, it gives the same rows, however far the stream has gone on.
"""

import dagster as dg

import watertable as wt
from watertable.settings import Settings
from watertable_platform.orchestration.batch import on_changed_days
from watertable_platform.orchestration.days import Days

COLUMNS = dg.TableSchema(
    [
        dg.TableColumn("country", "STRING", constraints=dg.TableColumnConstraints(nullable=False, other=["key"])),
        dg.TableColumn("day", "DATE", constraints=dg.TableColumnConstraints(nullable=False, other=["key"])),
        dg.TableColumn("revenue", "DECIMAL(38,3)"),
        dg.TableColumn("lines", "BIGINT"),
    ]
)
SETTINGS = Settings.load()
APP = SETTINGS.in_environment("retail")
HOURLY = dg.AssetKey([APP, "revenue_hourly"])
DAYS = Days.of(SETTINGS, APP)
LINEAGE = dg.TableColumnLineage(
    {
        "country": [dg.TableColumnDep(HOURLY, "country")],
        "day": [dg.TableColumnDep(HOURLY, "window_start")],
        "revenue": [dg.TableColumnDep(HOURLY, "revenue")],
        "lines": [dg.TableColumnDep(HOURLY, "lines")],
    }
)


@dg.asset(
    deps=[HOURLY],
    group_name=APP,
    owners=["team:retail"],
    kinds={"spark", "deltalake"},
    partitions_def=DAYS.partitions() if DAYS else None,
    backfill_policy=dg.BackfillPolicy.single_run() if DAYS else None,
    automation_condition=on_changed_days() if DAYS else None,
    retry_policy=dg.RetryPolicy(max_retries=4, delay=2, backoff=dg.Backoff.EXPONENTIAL, jitter=dg.Jitter.PLUS_MINUS),  # see below
    required_resource_keys={"pyspark"},
    metadata={"dagster/column_schema": COLUMNS, "dagster/column_lineage": LINEAGE, "dagster/storage_kind": "deltalake"},
)
def daily_revenue(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
    """Revenue and number of lines by country and day, in pounds sterling; lines too late for their hour are in neither.

    Of two runs that write at once, Delta lets one through and refuses the other, which then tries again.
    """
    from pyspark.sql import functions as F  # only where it runs: loading definitions imports no Spark

    spark = context.resources.pyspark.spark_session
    path = f"{SETTINGS.warehouse_uri}/batch/{SETTINGS.in_environment('daily_revenue')}"
    position = wt.position(APP)
    hourly, here = wt.read(f"{APP}.revenue_hourly", at=position), "true"
    if DAYS:  # only those that were asked for, and nothing else of what is there
        first, end = context.partition_time_window
        hourly = hourly.where(f"window_start >= TIMESTAMP '{first:%F %T}Z' AND window_start < TIMESTAMP '{end:%F %T}Z'")
        here = f"day >= DATE '{first:%F}' AND day < DATE '{end:%F}'"
    daily = hourly.groupBy("country", F.to_date("window_start").alias("day")).agg(
        F.sum("revenue").cast("DECIMAL(38,3)").alias("revenue"), F.sum("lines").alias("lines")
    )
    writer = daily.write.format("delta").mode("overwrite")
    (writer.option("replaceWhere", here) if DAYS else writer).save(path)
    written = spark.read.format("delta").load(path).where(here).agg(F.count("*"), F.sum("revenue"), F.max("day")).head()
    return dg.MaterializeResult(
        metadata={
            "dagster/row_count": written[0],
            "dagster/uri": path,
            "position": str(position),
            "revenue": float(written[1] or 0),
            "last_day": str(written[2]),
        }
    )
