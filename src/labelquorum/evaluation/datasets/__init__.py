"""Real data sets: the registry of facts, reading, checking, converting, downloading."""
