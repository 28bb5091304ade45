"""Observe topics: what they are (the data version) and how far they reach (metadata).

A topic's data version is its id and the schemas that it is read with, by all apps of the project: whoever tells it, the sensor or an app's
stream, tells the same. It is never an offset: with offsets, every table would be stale for ever, right after its own run too. End offsets
and lag are numbers beside it, reported when they moved.
"""

# No `from __future__ import annotations` here: Dagster reads the annotation of a `context` parameter as it stands.
import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import cast

import dagster as dg
from dagster._core.definitions.data_version import DATA_VERSION_TAG

from watertable.plan.nodes import Topic
from watertable.settings import Settings
from watertable_platform.orchestration.translator import beta, dagster_name, topic_key, topic_schema


@dataclass(frozen=True, slots=True)
class Watched:
    """Name a topic to observe: how the apps that read it declare it, by their names; their lag behind it is shown."""

    name: str
    readers: Mapping[str, Topic] = field(default_factory=dict)


def build_topic(spec: dg.AssetSpec, watched: Watched, settings: Settings) -> dg.AssetsDefinition:
    """Make a topic an asset that is observed: by the sensor, and by a person's click on `Observe`.

    It has to be of this kind: for the staleness of what depends on it, Dagster takes no notice of observations of a bare spec.
    """

    def look(context: dg.AssetExecutionContext) -> dg.ObserveResult:
        found = observe(settings, [watched])
        if not found:
            raise dg.Failure(f"topic {watched.name!r} doesn't exist on {settings.kafka}")
        version = dg.DataVersion((found[0].tags or {})[DATA_VERSION_TAG])
        return dg.ObserveResult(asset_key=spec.key, metadata=found[0].metadata, data_version=version)

    with beta():
        return cast(
            "dg.AssetsDefinition", dg.multi_observable_source_asset(specs=[spec], name=f"observe__{dagster_name(watched.name)}")(look)
        )


def observe(settings: Settings, watched: Collection[Watched], *, timeout: float = 5.0) -> list[dg.AssetObservation]:
    """Ask the cluster about topics that exist; raise `KafkaError` when it doesn't answer within the timeout."""
    from watertable.kafka.admin import Admin
    from watertable.kafka.config import Cluster

    admin = Admin(Cluster.of(settings), timeout=timeout)
    states = admin.describe([w.name for w in watched])
    partitions = [(name, number) for name, state in states.items() for number in range(state.partitions)]
    first, end = admin.earliest(partitions), admin.latest(partitions)
    readers = sorted({app for w in watched for app in w.readers})
    read = {app: admin.mirrored(app, [p for w in watched if app in w.readers for p in partitions if p[0] == w.name]) for app in readers}
    found = []
    for w in watched:
        if w.name not in states:
            continue
        own = [p for p in partitions if p[0] == w.name]
        lag = {f"lag of {app}": sum(max(0, end[p] - max(first[p], read[app].get(p, 0))) for p in own) for app in w.readers}
        found.append(
            dg.AssetObservation(
                topic_key(w.name),
                metadata={
                    "records": sum(end[p] - first[p] for p in own),
                    "end offset": sum(end[p] for p in own),
                    "end offsets": dg.MetadataValue.json({str(number): end[name, number] for name, number in own}),
                    "partitions": len(own),
                    "topic id": states[w.name].id,
                    **lag,
                },
                tags={DATA_VERSION_TAG: data_version(states[w.name].id, w.readers.values())},
            )
        )
    return found


def data_version(topic_id: str, topics: Iterable[Topic]) -> str:
    """Identify what a topic is: its id in the cluster, and the schemas that it is read with."""
    schemas = sorted({topic_schema(topic).sql() for topic in topics})
    return f"{topic_id}:{hashlib.sha256('; '.join(schemas).encode()).hexdigest()[:8]}" if schemas else topic_id


def fingerprint(observation: dg.AssetObservation) -> str:
    """Sum up an observation, to tell whether anything moved since the last."""
    shown = {label: value.value for label, value in observation.metadata.items()}
    return hashlib.sha256(json.dumps([shown, observation.tags], sort_keys=True, default=str).encode()).hexdigest()[:12]


def unseen(instance: dg.DagsterInstance, observations: Iterable[dg.AssetObservation]) -> list[dg.AssetObservation]:
    """Keep those observations whose data version isn't the recorded one: a table's provenance must name it."""
    kept = []
    for observation in observations:
        record = instance.get_latest_data_version_record(observation.asset_key, is_source=True)
        recorded = (record.event_log_entry.tags or {}).get(DATA_VERSION_TAG) if record else None
        if recorded != (observation.tags or {}).get(DATA_VERSION_TAG):
            kept.append(observation)
    return kept
