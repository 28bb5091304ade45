"""A project of its own, a real broker and a real `dagster dev` with its daemon, driven over GraphQL as the browser does."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest
import yaml

from watertable.kafka.config import Cluster

T = TypeVar("T")
ROOT: Final = Path(__file__).resolve().parents[2]
MARK: Final = "WATERTABLE_E2E_MARK"

SHOP: Final = """
    import watertable as wt

    app = wt.App("shop", owner="team:shop", description="What the e2e tests run.")
    sales = app.topic("sales", key="item STRING", value="qty BIGINT, at TIMESTAMP", timestamp="at").stream()
    stock = sales.group_by("item").agg(on_hand=wt.sum("qty"), sales=wt.count()).materialized_as("stock")
    hourly = sales.group_by("item").windowed_by(wt.tumbling(hours=1, grace=wt.minutes(10))).agg(n=wt.count()).materialized_as("hourly")
    stock.to_stream().filter("new.on_hand < 0").to("reorders")
"""

REPORT: Final = """
    import dagster as dg

    @dg.asset(deps=[dg.AssetKey(["shop", "stock"])], key_prefix="shop", required_resource_keys={"pyspark"})
    def totals(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
        import watertable as wt

        assert context.resources.pyspark.spark_session.conf.get("spark.sql.session.timeZone") == "UTC"
        rows = wt.read("shop.stock").collect()
        return dg.MaterializeResult(metadata={"items": len(rows), "sales": sum(r["sales"] for r in rows)})
"""


@dataclass
class Project:
    """A folder with one app, a warehouse and a Dagster home of its own."""

    root: Path
    cluster: Cluster
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    app: str = SHOP

    def write(self, name: str, text: str) -> None:
        file = self.root / "assets" / "shop" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text))

    def send(self, *records: tuple[str, int], at: str = "2011-01-01T00:00:00Z", partition: int = 0) -> None:
        from confluent_kafka import Producer

        producer = Producer(self.cluster.client_config())
        for item, qty in records:
            producer.produce("sales", json.dumps({"qty": qty, "at": at}), key=item, partition=partition)
        assert producer.flush(20) == 0

    def end(self, topic: str, partition: int = 0) -> int:
        """Give the offset of the next record."""
        from watertable.kafka.admin import Admin

        return Admin(self.cluster).latest([(topic, partition)])[topic, partition]

    def processes(self) -> dict[int, str]:
        """Find every process that descends from this project: they all inherit its mark."""
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal() or int(entry.name) == os.getpid():
                continue
            try:
                if self.mark.encode() in (entry / "environ").read_bytes():
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:200]
            except OSError:
                continue
        return found

    def kill(self) -> None:
        """End every process of the project at once, as a machine that dies does."""
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def env(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("WATERTABLE_", "DAGSTER_"))}
        caches = {n: v for n, v in os.environ.items() if n in ("WATERTABLE_CACHE", "WATERTABLE_MAVEN_MIRROR")}
        return kept | caches | {MARK: self.mark, "DAGSTER_HOME": str(self.root / "dagster"), "WATERTABLE_PROJECT": str(self.root)}


class Dagster:
    """Hold a running `dagster dev`; calls are those that its page makes."""

    def __init__(self, project: Project) -> None:
        self.project = project
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = project.root / "dagster.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "dagster", "dev", "-w", "workspace.yaml", "-h", "127.0.0.1", "-p", str(self.port)],
                cwd=self.project.root, env=self.project.env(), stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip
        self.until("the page answers", self._answers, 400)

    def stop(self) -> None:
        """End it as Ctrl-C would, then what it left: a run's worker outlives its Dagster, and its driver with it."""
        if self.process is None:  # a test has stopped it already
            return
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                pass
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()

    def query(self, text: str, **variables: object) -> dict[str, Any]:
        body = json.dumps({"query": text, "variables": variables}).encode()
        request = urllib.request.Request(f"{self.url}/graphql", body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=180) as answer:
                said: dict[str, Any] = json.load(answer)
        except urllib.error.HTTPError as error:  # 400: the body says what is wrong with the query
            raise AssertionError(error.read().decode()) from None
        assert "errors" not in said, said["errors"]
        data: dict[str, Any] = said["data"]
        return data

    def launch(
        self,
        job: str,
        assets: Sequence[Sequence[str]] = (),
        config: Mapping[str, object] | None = None,
        days: tuple[str, str] | None = None,
    ) -> str:
        tags = zip(("start", "end"), days or (), strict=False)
        metadata = {"tags": [{"key": f"dagster/asset_partition_range_{end}", "value": day} for end, day in tags]}
        selector = {"repositoryLocationName": "watertable", "repositoryName": "__repository__", "jobName": job}
        if assets:
            selector |= {"assetSelection": [{"path": list(path)} for path in assets]}  # type: ignore[dict-item]
        said = self.query(
            """mutation($p: ExecutionParams!) { launchRun(executionParams: $p) { __typename ... on LaunchRunSuccess { run { runId } }
                 ... on RunConfigValidationInvalid { errors { message } } ... on PythonError { message } } }""",
            p={"selector": selector, "runConfigData": json.dumps(config or {}), "mode": "default", "executionMetadata": metadata},
        )["launchRun"]
        assert said["__typename"] == "LaunchRunSuccess", said
        return str(said["run"]["runId"])

    def backfill(self, assets: Sequence[Sequence[str]], days: Sequence[str], config: Mapping[str, object] | None = None) -> str:
        """Launch a backfill of some partitions, as the page's dialog does; give its id."""
        said = self.query(
            """mutation($p: LaunchBackfillParams!) { launchPartitionBackfill(backfillParams: $p) { __typename
                 ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message } } }""",
            p={"assetSelection": [{"path": list(path)} for path in assets], "partitionNames": list(days), "runConfigData": config or {}},
        )["launchPartitionBackfill"]
        assert said["__typename"] == "LaunchBackfillSuccess", said
        return str(said["backfillId"])

    def backfilled(self, backfill: str) -> dict[str, Any]:
        """Give a backfill's status, and its runs."""
        one = """query($i: String!) { partitionBackfillOrError(backfillId: $i) { ... on PartitionBackfill {
                   status numPartitions runs(limit: 9) { runId status runConfigYaml } } } }"""
        return dict(self.query(one, i=backfill)["partitionBackfillOrError"])

    def launch_stream(self, app: str = "shop", **config: object) -> str:
        return self.launch(f"stream__{app}", config={"ops": {f"run__{app}": {"config": {"report_seconds": 1.0, **config}}}})

    def terminate(self, run: str, policy: str = "SAFE_TERMINATE") -> None:
        act = "mutation($i: String!, $p: TerminateRunPolicy!) { terminateRun(runId: $i, terminatePolicy: $p) { __typename } }"
        said = self.query(act, i=run, p=policy)
        assert said["terminateRun"]["__typename"] == "TerminateRunSuccess", said

    def run(self, run: str) -> dict[str, Any]:
        one = "query($i: ID!) { runOrError(runId: $i) { ... on Run { runId status tags { key value } } } }"
        found = self.query(one, i=run)["runOrError"]
        return {**found, "tags": {t["key"]: t["value"] for t in found["tags"]}}

    def runs(self, job: str) -> list[dict[str, Any]]:
        """List a job's runs, newest first."""
        found = self.query(
            """query($j: String!) { runsOrError(filter: {pipelineName: $j}, limit: 50) { ... on Runs {
                 results { runId status tags { key value } } } } }""",
            j=job,
        )
        return [{**r, "tags": {t["key"]: t["value"] for t in r["tags"]}} for r in found["runsOrError"]["results"]]

    def asset(self, *path: str) -> dict[str, Any]:
        found = self.query(
            """query($k: AssetKeyInput!) { assetNodeOrError(assetKey: $k) { ... on AssetNode {
                 staleStatus staleCauses { category reason } kinds groupName opVersion isPartitioned isMaterializable description pools
                 owners { ... on TeamAssetOwner { team } }
                 dependencyKeys { path } dependedByKeys { path } metadataEntries { label __typename }
                 assetMaterializations(limit: 20) { runId timestamp partition tags { key value } metadataEntries { label
                   ... on IntMetadataEntry { intValue } ... on FloatMetadataEntry { floatValue } ... on TextMetadataEntry { text } } }
                 assetObservations(limit: 20) { runId metadataEntries { label ... on IntMetadataEntry { intValue }
                   ... on FloatMetadataEntry { floatValue } ... on TextMetadataEntry { text }
                   ... on MarkdownMetadataEntry { mdStr } } }
                 assetPartitionStatuses { ... on TimePartitionStatuses { ranges { status startKey endKey } } }
                 assetChecksOrError { ... on AssetChecks { checks { name executionForLatestMaterialization { status
                   evaluation { success severity description } } } } } } } }""",
            k={"path": list(path)},
        )
        return dict(found["assetNodeOrError"])

    def materializations(self, *path: str) -> list[dict[str, Any]]:
        """List a table's last materializations, newest first, their metadata by label."""
        return [{**m, "metadata": numbers(m)} for m in self.asset(*path)["assetMaterializations"]]

    def check(self, table: str, name: str, app: str = "shop") -> dict[str, Any]:
        """Give a check's evaluation for the table's latest materialization; empty when there is none."""
        checks = self.asset(app, table)["assetChecksOrError"]["checks"]
        execution = next(c for c in checks if c["name"] == name)["executionForLatestMaterialization"]
        return dict((execution or {}).get("evaluation") or {})

    def reload(self) -> None:
        said = self.query("mutation { reloadWorkspace { __typename ... on PythonError { message } } }")["reloadWorkspace"]
        assert said["__typename"] == "Workspace", said

    def until(self, what: str, probe: Callable[[], T | None], seconds: float = 300) -> T:
        """Wait until a probe gives something true, and return it; fail with what Dagster printed last."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            assert self.process is None or self.process.poll() is None, f"dagster dev ended: {self._tail()}"
            found = probe()
            if found:
                return found
            time.sleep(0.5)
        drivers = "".join(f"\n--- {f.name}\n{f.read_text()[-2000:]}" for f in (self.project.root / ".watertable" / "logs").glob("*.log"))
        raise AssertionError(f"not within {seconds:.0f} s: {what}\n{self._tail()}{drivers}")

    def _answers(self) -> bool:
        try:
            said = self.query("{ repositoriesOrError { __typename ... on RepositoryConnection { nodes { name } } } }")
        except OSError:
            return False
        return bool(said["repositoriesOrError"].get("nodes"))

    def _tail(self) -> str:
        return self.log.read_text(errors="replace")[-6000:] if self.log.exists() else ""


def numbers(materialization: Mapping[str, Any]) -> dict[str, Any]:
    values = ("intValue", "floatValue", "text", "mdStr")
    return {m["label"]: next((m[v] for v in values if m.get(v) is not None), None) for m in materialization["metadataEntries"]}


@pytest.fixture(scope="module")
def project(broker: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Project:
    return make_project(broker, tmp_path_factory.mktemp("shop"))


def make_project(broker: Cluster, root: Path, settings: str = "") -> Project:
    """Make the folder, with further settings where they are given, and its topics anew."""
    from watertable.kafka.admin import Admin

    (root / "pyproject.toml").write_text(
        textwrap.dedent(f"""
            [tool.watertable]
            kafka = "{broker.bootstrap}"
            master = "local[2]"
            fold_seconds = 3
            {settings}
            [tool.watertable.spark]
            "spark.driver.memory" = "1g"
        """)
    )
    (root / "dagster").mkdir()
    (root / "dagster" / "dagster.yaml").write_bytes((ROOT / "platform" / "watertable_platform" / "dagster.yaml").read_bytes())
    workspace = yaml.safe_load((ROOT / "workspace.yaml").read_text())
    (root / "workspace.yaml").write_text(yaml.safe_dump(workspace))
    made = Project(root, broker)
    made.write("app", SHOP)
    made.write("report", REPORT)
    admin = Admin(broker)
    for topic in ("sales", "reorders", "watertable.shop.outbox"):  # which was published from another warehouse
        admin.delete_topic(topic) if topic in admin.topics() else None
    admin.create_topic("sales", partitions=2, config={"retention.ms": "-1"})
    admin.create_topic("reorders", partitions=1)
    return made


@pytest.fixture(scope="module")
def dagster(project: Project) -> Iterator[Dagster]:
    running = Dagster(project)
    running.start()
    try:
        yield running
    finally:
        running.stop()
        project.kill()  # only where a test failed half-way
