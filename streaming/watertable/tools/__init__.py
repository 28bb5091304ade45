"""Look into what an app did, or would do: which records made a row, which made it wrong, and what edited code makes of the last ones.

`explain` tells the story of one row, `testcase` writes it as a test, `bisect` finds the first record at which a condition was true, and
`preview` runs a definition without a commit. `past` reads what is left of the topics.
"""
