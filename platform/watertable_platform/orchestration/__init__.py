"""Run a project in Dagster: its topics and tables as assets, its apps as jobs that a sensor keeps at their desired state, checks, rewinds.

`assembly` puts it together. `translator`, `topics`, `days` and `batch` make the graph; `stream_job` keeps an app's driver (`child`)
alive, as `supervisor` decides from `history`, under a `lease`, and `reporting` tells Dagster how it goes; `checks` and `suites` judge
tables; `acts` and `rewind_jobs` are backfills and rewinds; `sensors` tick.
"""
