"""Every setting, declared once: name, type, bounds, default and help.

In use in the front end, which reads them, and in the worker, which receives those of its model. `serving` has the
top-level keys of serving.properties, `options` its option.* keys, `server` the keys of config.properties; `values` has
types that several of them need. From these declarations come parsing and validation (`binding`), the tables of
docs/settings.md (`table`) and the nearest-name suggestions. A field's encoded name is the key as the user writes it;
`Meta(extra=...)` holds what msgspec has no field for:

    environment  a variable that sets this, beside OPTION_<KEY>
    aliases      other keys for the same setting
    arguments    other keys without the prefix: DJL's arguments of its translators
    spellings    other spellings of values
    without_effect  values of other engines, and why they have no effect here
    entry        vLLM's name of the value in an object: {"image": 4}
    expected     the words for "expected ..." where type and bounds don't say it
"""
