"""Run an app: `job` begins a run and ends it, `loop` goes from a range of offsets to a commit, the only place that holds a running app.

`replay` is that loop for a shadow. Beside it, each in a thread, `workers` fold and publish. `ranges` and `advances` choose what a batch
reads and whom it waits for; `events` say what happens, as data.
"""
