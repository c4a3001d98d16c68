"""HTTP's own rules for the headers and statuses of answers.

Used in the front end and the worker.
"""

from __future__ import annotations

import re
from typing import Final

#: Pattern of a header's name.
TOKEN: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
HEADER_NAME: Final = re.compile(TOKEN)
HEADER_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
#: Headers about the connection, which only the server may set, in lower case.
SERVERS_OWN: Final = frozenset({"connection", "content-length", "keep-alive", "transfer-encoding", "upgrade"})
#: Statuses without a body.
BODILESS: Final = frozenset({204, 304})
