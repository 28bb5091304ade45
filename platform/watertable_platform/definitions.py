"""Hold `defs`: the definitions of the project around the working directory, which workspace.yaml points at."""

from __future__ import annotations

from typing import Final

import dagster as dg

from watertable.project import load_apps
from watertable.settings import Settings
from watertable_platform.orchestration.assembly import build_definitions

defs: Final[dg.Definitions] = build_definitions(load_apps(Settings.load()))
