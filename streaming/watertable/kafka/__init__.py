"""Reach Kafka: the cluster's address, its topics, records in and out, and a real broker of our own for development.

`config` says how to connect, once for Spark, the admin and the Python client; `admin` asks about topics and offsets and notices what
changed behind our back; `source` reads ranges into Spark; `serdes` is the meaning of bytes; `publisher` sends an outbox exactly
once; `broker` runs Apache Kafka on loopback. Only this folder imports confluent_kafka, and only `source` imports PySpark.
"""
