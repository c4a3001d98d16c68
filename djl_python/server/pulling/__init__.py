"""Models that are downloaded while the server runs, and registered then. Runs in the front end."""
