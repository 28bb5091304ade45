"""Hold the language that definitions are written in: Spark SQL's expressions, read, typed, evaluated in Python and written for Spark.

`expressions` is the way in. Text becomes a tree that is typed: by `binder`, with the functions that `functions` lists and `signatures` and
`operators` type, with casts by `coercion` and the user's own Python by `udfs`. A tree becomes a value in Python (`evaluator`, with
`scalars` and the modules beside it), or text for Spark (`spark_sql`). No expression reaches either engine by another way.
"""
