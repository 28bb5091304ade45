"""Run an app: `job` is the loop from a range of offsets to a commit, and the only place that holds a running app.

Beside it, each in a thread, `workers` fold and publish. `ranges` and `advances` choose what a batch reads and whom it waits for; `events`
say what happens, as data.
"""
