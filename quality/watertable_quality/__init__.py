"""Check data by rules: `watertable.rules` compiled into the batch, and suites over a table at one pinned position.

Row rules live with the engine, since they decide what enters a table. What is added here judges a table as a whole, from the outside, and
may know Great Expectations, in one file. Nothing of that is in this release yet: the package holds its place in the wheel, so that
imports and the laws about them stand.
"""
