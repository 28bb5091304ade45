"""Give batch assets their Spark session through dagster-pyspark's resource, with the project's own configuration.

An asset asks for the resource `pyspark` and reads `spark_session`, as with any of dagster-pyspark's. The session starts when it is first
read, from the same settings as every session of the project, and ends with the asset's process. dagster-pyspark imports Spark, so it
is imported in the process that runs the asset, never where definitions are loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import dagster as dg

from watertable.settings import Settings

if TYPE_CHECKING:
    from dagster_pyspark import LazyPySparkResource


def build_spark_resource(settings: Settings) -> dg.ResourceDefinition:
    """Make the resource `pyspark`; its config, `spark_config`, goes over the project's `spark.*` settings.

    Dagster keeps a run's config, and shows it: a secret is "env:NAME" there too, or a `SettingsError`.
    """

    @dg.resource(
        config_schema={
            "spark_config": dg.Field(dict, default_value={}, description="spark.* settings over those of the project; secrets as env:NAME")
        },
        description="dagster-pyspark's resource on this project's Spark settings; the session starts when it is first read.",
    )
    def pyspark(context: dg.InitResourceContext) -> LazyPySparkResource:
        return _resource(settings, {str(k): str(v) for k, v in context.resource_config["spark_config"].items()})

    return pyspark


def _resource(settings: Settings, conf: dict[str, str]) -> LazyPySparkResource:
    from dagster_pyspark import LazyPySparkResource

    from watertable.session import spark_session

    ours = settings.with_spark(conf)

    class WatertableSpark(LazyPySparkResource):
        """Start the session as the engine does: secrets travel in a file, jars are the pinned ones."""

        def _init_session(self) -> None:
            if self._spark_session is None:
                self._spark_session = spark_session(ours, app="watertable batch")

    return WatertableSpark(spark_config=conf)
