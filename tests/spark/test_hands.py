"""Hold a changelog to its law: others may lay its files out anew, and what they do to its rows is refused until it is put back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.ledger import Ledger
from tests.spark.test_rewind import Kafka
from watertable.acts import rewind
from watertable.acts.rewind import Target
from watertable.errors import StoreError
from watertable.store.deltalog import HELD
from watertable.store.writer import Writer

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.spark
DOES = {
    "RESTORE": "RESTORE TABLE {0} TO VERSION AS OF {1}",
    "DELETE": "DELETE FROM {0} WHERE seq = 3",
    "UPDATE": "UPDATE {0} SET seq = 9 WHERE `table` = 'stock' AND seq = 4",
    "WRITE": "INSERT INTO {0} SELECT * FROM {0} WHERE `table` = 'stock'",
    "TRUNCATE": "TRUNCATE TABLE {0}",
}


@pytest.fixture
def sold(ledger: Ledger) -> Ledger:
    """Commit four batches, two of which are folded."""
    ledger.sell(a=1, b=2)
    ledger.sell(a=1)
    ledger.store.folder.fold_all()
    ledger.sell(b=1)
    ledger.sell(c=4)
    return ledger


def forget() -> None:
    """Forget what this process has seen, as a new one has seen nothing."""
    for held in HELD:
        held.clear()


def do(ledger: Ledger, *what: str) -> int:
    """Do something to the changelog by hand; give the version that it was before."""
    before = ledger.store.changelog.snapshot().version
    for statement in what:
        ledger.spark.sql(statement.format(f"delta.`{ledger.store.changelog.path}`", before - 1))
    return before


@pytest.mark.slow
@pytest.mark.parametrize(("does", "running"), [*((does, True) for does in DOES), ("RESTORE", False), ("UPDATE", False)])
def test_a_changelog_whose_rows_others_have_changed_is_refused_until_it_is_put_back(sold: Ledger, does: str, running: bool) -> None:
    before = do(sold, DOES[does])
    if not running:
        forget()
    uses: list[Callable[[], Any]] = [
        lambda: sold.read("stock"), lambda: sold.sell(a=1), sold.store.folder.fold_all, sold.restart, sold.store.upkeep.trim,
        sold.writer.check,
    ]  # fmt: skip
    if does == "RESTORE":
        uses.append(lambda: sold.read("stock", "shop@1.1"))
    for use in uses:
        with pytest.raises(StoreError, match=rf"changelog: version {before + 1} \({does}\).*RESTORE TABLE .* VERSION AS OF {before}`"):
            use()
    do(sold, f"RESTORE TABLE {{0}} TO VERSION AS OF {before}")
    if not running:
        forget()
    assert sold.read("stock") == sold.stock
    again = sold.restart()
    again.sell(a=1)
    again.store.folder.fold_all()
    assert again.read("stock") == again.stock


@pytest.mark.slow
def test_a_changelog_that_cannot_be_put_back_is_read_again_in_a_new_epoch(sold: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = Writer._write

    def beside(self: Writer, *args: Any) -> Any:
        draft = begin(self, *args)
        do(sold, DOES["DELETE"])
        return draft

    with monkeypatch.context() as patch:
        patch.setattr(Writer, "_write", beside)
        with pytest.raises(StoreError, match="The app has committed since, so have everything read again"):
            sold.sell(a=1)
    forget()
    with pytest.raises(StoreError, match="rewind shop --to earliest --apply"):
        sold.restart()
    kafka: Any = Kafka()
    kafka.thin = frozenset({"names"})  # of which it is asked whether records were refused
    plan = rewind.plan(sold.store, sold.topology, kafka, Target.parse("earliest"))
    rewind.apply(sold.store, plan, sold.topology.fingerprint, kafka)
    forget()
    again = sold.restart()
    again.stock = {}
    again.sell(a=1, b=2)
    again.store.folder.fold_all()
    assert str(again.store.head().position) == "shop@2.1"
    assert again.read("stock") == again.stock == {"a": 1, "b": 2}


@pytest.mark.slow
def test_what_leaves_the_rows_of_tables_as_they_are_is_refused_nowhere(sold: Ledger) -> None:
    do(
        sold,
        "OPTIMIZE {0}",
        "VACUUM {0}",
        "DELETE FROM {0} WHERE `table` IN ('__quarantine', '__dropped')",
        "REORG TABLE {0} APPLY (PURGE)",
    )
    for _ in range(2):
        assert sold.read("stock") == sold.stock
        sold.sell(a=1)
        sold.store.folder.fold_all()
        forget()
        sold = sold.restart()
    assert sold.read("stock") == sold.stock
