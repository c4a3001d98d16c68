"""Models that several devices share."""
