"""What must hold of the tables: checks in Dagster, all at one position; those that are critical, a promote has to pass."""

from watertable_quality import Severity, Suite, between, not_null, unique

items = Suite("NAME.items", unique("item"), between("sold", 1, None), not_null("revenue", severity=Severity.WARNING))
hourly = Suite("NAME.hourly", between("orders", 1, None))
