"""Forms that data has on the wire. Pure functions; used in the front end and in the worker.

`json_framing` encodes JSON, and frames streams as lines or server-sent events; `json_size` counts JSON before work is
done on it; `json_schema` checks and completes the schemas that constrain generation, `json_instances` and
`json_alternatives` say what their instances are; `forms` and `csv_reading` read bodies; `archives` unpacks what may be
hostile; `http_rules` has HTTP's rules about headers, statuses and what a client accepts.
"""
