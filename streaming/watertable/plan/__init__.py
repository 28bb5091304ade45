"""Hold what the user asked for as frozen data: no Spark, no Kafka, and nothing about how it runs.

`plan` is the topology, and `nodes` are its steps, which hold `aggregates`, `windows`, `processors`, `rules` and `stages`; `scopes` says
which names an expression may use where. `fingerprints` and `deployment` tell what changed from one plan to another, `purity` what depends
on arrival, `lineage` what comes from what.
"""
