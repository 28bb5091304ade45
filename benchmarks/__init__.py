"""Measure watertable beside what else one would use, in one run on one machine; `make bench`, or `python -m benchmarks --help`."""
