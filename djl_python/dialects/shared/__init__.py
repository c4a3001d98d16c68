"""What dialects share: requests, answers, errors, and how bodies are read."""
