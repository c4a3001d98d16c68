"""DJL's management API: models come, are scaled, described and go while the server runs. Runs in the front end.

`pages` answers its routes; `parameters` reads what a request says, in its query or in its body; `types` are the bodies,
as /openapi.json shows them; `descriptions` puts a model into DJL's words.
"""
