"""Ollama's API: /api/chat, /api/generate, /api/embed and the pages about models. Source: Ollama's docs/api.md, 0.12.

- `dialect`: the routes, and the names of models.
- `request`: chats and prompts, and what they ask of the engine; `answer`: their lines of JSON.
- `keep_alive`: how long models stay loaded; `managing`: copying and deleting them; `pulling`: downloading them.
- `embed`: embeddings; `models`: the pages about models; `errors`: its errors.
"""
