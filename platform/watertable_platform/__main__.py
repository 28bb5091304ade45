"""Run the command line as `python -m watertable_platform`: what Dagster starts its drivers with, whatever is on PATH."""

from __future__ import annotations

import sys

from watertable_platform.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
