"""Count words: the example that every stream processor begins with."""

import watertable as wt

app = wt.App("wordcount")
lines = app.topic("lines", value="line STRING", value_format="string").stream()
words = lines.flat_map_values(word="split(lower(line), ' ')")
counts = words.group_by("word").agg(n=wt.count()).materialized_as("counts")
