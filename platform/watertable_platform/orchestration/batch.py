"""Run batch days again exactly where the days they read have changed: the condition that a batch asset takes, and the sensor behind it.

A table reports a day when it closes, under the position that touched it last as its data version, and again only when that has changed:
when late data or a rewind has touched it. So a batch asset with the same daily partitions is due for the days whose versions are new.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import dagster as dg

from watertable_platform.orchestration.translator import beta

SENSOR: Final = "run_changed_days"
_SECONDS: Final = 15


def on_changed_days() -> dg.AutomationCondition[Any]:
    """Give the automation condition of a partitioned batch asset that follows tables: its days that are new, or have changed.

    A day that was never made is due once all that it reads is there; a day whose input changed while it was being made is due again.
    """
    condition = dg.AutomationCondition
    due = condition.missing().newly_true() | condition.any_deps_match(condition.data_version_changed())
    # a day that becomes due just when its run has been asked for would be forgotten with that request: it is told a tick later again
    told = due | ((~due).newly_true() & ~condition.initial_evaluation())
    ready = ~condition.any_deps_missing() & ~condition.in_progress()
    return (told.since(condition.newly_requested()) & ready).with_label("on_changed_days")


def build_automation_sensor(
    batches: Sequence[dg.Definitions], others: Iterable[dg.AssetsDefinition | dg.SourceAsset] = ()
) -> dg.AutomationConditionSensorDefinition | None:
    """Make the sensor that looks at such conditions, on by default; None where no asset has one.

    What a sensor of the users' own looks at is left to that: two would each ask for a run. `others` are the assets around the batches',
    by which such a sensor may choose.
    """
    kinds = (dg.AssetsDefinition, dg.SourceAsset)
    assets = [asset for batch in batches for asset in batch.assets or () if isinstance(asset, kinds)]
    made = [asset for asset in assets if isinstance(asset, dg.AssetsDefinition)]
    keys = {key for asset in made for key, of in asset.specs_by_key.items() if of.automation_condition is not None}
    for batch in batches:
        for sensor in batch.sensors or ():
            if isinstance(sensor, dg.AutomationConditionSensorDefinition):
                keys -= sensor.asset_selection.resolve([*others, *assets], allow_missing=True)
    if not keys:
        return None
    with beta():
        return dg.AutomationConditionSensorDefinition(
            SENSOR,
            target=dg.AssetSelection.assets(*sorted(keys)),
            minimum_interval_seconds=_SECONDS,
            default_status=dg.DefaultSensorStatus.RUNNING,
            description="Runs the days of batch assets whose inputs have changed: they closed, or were touched by late data or a rewind.",
        )
