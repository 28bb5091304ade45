"""Talk with a person at a terminal: `main` has the commands, `rewinding` those that rewind, and the rest is what they show.

What a command needs is imported when it runs: `watertable --help` starts neither Spark nor Dagster.
"""
