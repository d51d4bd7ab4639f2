"""Running cells: configurations, sweeps, engines and progress."""
