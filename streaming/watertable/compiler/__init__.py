"""Compile a plan and one batch of records into one DataFrame of changes per table: Spark's engine of a topology.

The law: whatever the cuts between batches, merging the changes of all batches gives the rows of the interpreter. The same code runs a
micro-batch, a backfill over a range and a full rebuild. Everything but the user's own Python is built-in columnar functions.

The plan's layout says which columns to compute. One pass over the batch decodes, runs every stateless operator, finds every failure,
counts, and keeps just what tables and outputs need. What is read more than once after that (changes of a table above all) is computed
once and kept. Per batch: one job for that pass, one for each later segment that is kept, one for each look at the old rows of a table,
whose changes are streamed, that a stream is joined with or that a processor keeps, and the writer's. Where one table is all that reads
the pass, that is written by it. What is the same in each batch is analysed once, and filled with the batch's frames.

`layout` composes the columns and `versions` reads histories, both as text; `algebra` merges states and finishes rows, for readers, too.
`batch` is what others call, and counts; `segments` and `joins` make the records that each pass begins with; `run` holds what a batch is
computed with, and what records add to tables; `prepared` keeps the steps that are the same in each batch; `telling` follows rows that
several states make; `windowing` and `pythons` write the windows of a record and call the user's functions.
"""

from watertable.compiler.batch import DROPPED, OUT, QUARANTINE, Batch, BatchStats, Compiler
from watertable.compiler.prepared import Make, Prepared, anew
from watertable.compiler.run import Keys, Lookup, Partition, Write

__all__ = [
    "DROPPED", "OUT", "QUARANTINE", "Batch", "BatchStats", "Compiler", "Keys", "Lookup", "Make", "Partition", "Prepared", "Write", "anew",
]  # fmt: skip
