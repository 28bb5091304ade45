"""Run a topology record by record over Python data: short and obvious, so that it can be the oracle.

The law: a table is a function of its topics' records as first read and of the advances, whatever the batches. Three rules carry it.
Stream time is a running maximum per partition, taken as records arrive. Records then go through the graph one by one in log order
(stream time, topic, partition, offset). Every table only merges what a record lifts, by merges that don't care for order. Batches show
in one place alone: where a table's changes are streamed, each batch is in log order, and batches follow each other as they came.

Two records made from one are told apart by the `ord` of their place: the n-th element of an array, or the n-th window of a record, is
`ord * FAN_OUT + n` (`plan.places`); the n-th of m merged streams `ord * m + n`; a pair of records has a number of its own (`pair_number`).

`engine` works the records off; beside it are what it merges by (`merges`), and what it keeps for joins of streams (`pairing`), versioned
tables (`histories`) and processors (`visits`); `rows` takes a state to the row that readers see.
"""

from watertable.interpreter.engine import Interpreter

__all__ = ["Interpreter"]
