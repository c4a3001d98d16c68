"""Who may use what: API keys and their scopes. No I/O; in the front end, and in dialects' routes."""
