"""What a model tells beyond its answers: intervals, reasons, drift, flags, when to stop."""
