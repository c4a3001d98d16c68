"""OpenAI's responses that are kept, and those that are made in the background. Runs in the front end's event loop.

- `kept`: a response, and all of one owner.
- `store`: the responses, in memory or in `responses_directory`, and their limits.
- `keeping`: the response to one request, until it is kept.
- `recording`: keeps a response while its client gets it; `background`: makes one whose client does not wait.
- `responses`: what the front end does about a request for a response: finds those before it, has it kept.
- `pages`: answers the routes about kept responses.
"""
