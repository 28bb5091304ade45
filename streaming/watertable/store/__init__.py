"""Keep an app's tables: one changelog, in which one append is one transaction, and a Delta table for each table, folded from it.

From the bottom: `deltalog` reaches one Delta table through its log; `commits` says what commits and lineages are, `changelog` where they
are kept, `bases` what a table is folded into; `views` reads tables that are pinned at one position, and `reader` pins them; `fold` brings
bases up to it; `writer` appends, fenced; `upkeep` trims and rewrites. `archive` keeps the raw records of topics, and `touched` tells
which days the commits touched.
"""
