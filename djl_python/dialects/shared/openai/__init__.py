"""What OpenAI's chats and responses have in common. `errors`: errors in OpenAI's shape."""
