"""Trained weights: what random ones cannot show."""
