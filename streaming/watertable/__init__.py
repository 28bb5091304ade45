"""watertable."""
