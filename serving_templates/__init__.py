"""Model directories to copy, and the demo model."""
