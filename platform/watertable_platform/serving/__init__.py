"""Serve tables over HTTP, read-only: `service` has what can be asked for, `desk` computes it within bounds, `running` is the process.

It is what interactive queries are to Kafka Streams, but for one thing: it reads the store, not the app. So it runs wherever Spark and the
warehouse are, beside an app that runs or without one, as often as there is need of it; and each answer says of which position it is.
"""
