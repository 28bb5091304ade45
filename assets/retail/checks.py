"""What must hold of the shop's tables: checks in Dagster, all at one position; those that are critical, a promote has to pass."""

from watertable_quality import Severity, Suite, between, not_null, unique

inventory = Suite("retail.inventory", not_null("on_hand"), unique("stock_code"))
customers = Suite("retail.customers", between("orders", 1, None), not_null("spend"))
revenue = Suite("retail.revenue_hourly", between("lines", 1, None), not_null("revenue"))
# a debt was written off under the stock code B, at a price below zero: worth a look, and no reason to stop
prices = Suite("retail.prices", between("price", 0, None, severity=Severity.WARNING))
