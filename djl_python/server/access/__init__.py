"""Distinguishes clients, and pages in their browsers. Runs in the front end's event loop."""
