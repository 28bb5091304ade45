"""Write topologies as Kafka Streams users would: `App`, `Stream` and `Table`, whose operators check their arguments and make nodes.

An operator that is wrong fails where it is written. `streams` and `tables` import each other: a stream makes tables, and a table streams.
"""
