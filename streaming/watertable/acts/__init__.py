"""Act on the history of an app: rewind it in place, beside it as a shadow, or some tables of it alone; promote, give up, undo.

Each act is planned first, in a form that says all that will happen, and is then made so by one row of the changelog, or one commit.
`targets` finds where to; `rebuild` says what can be made anew by itself; `estimates` how long a replay takes.
"""
