"""Deploy, supervise, check and draw watertable's apps in Dagster."""
