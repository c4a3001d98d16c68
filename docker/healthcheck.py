"""The image's HEALTHCHECK: whether the server in this container answers GET /v2/health/live, which needs no API key.

The server's address is that of its command line (-p, --port), else of SERVING_INFERENCE_ADDRESS, else port 8080. HTTPS
is tried where HTTP gets no answer; a certificate is not verified, because it names other hosts.

Exit codes: 0 the server is alive; 1 it is not, and the line on standard error says why.
"""

import http.client
import os
import socket
import ssl
import sys
from pathlib import Path
from urllib.parse import urlsplit

TIMEOUT_S = 5


def port_of(command: list[str]) -> int | None:
    """The port that a server's command line names."""
    for option, value in zip(command, [*command, ""][1:], strict=True):
        name, given, beside = option.partition("=")
        if name in ("-p", "--port"):
            return int(beside if given else value)
    return None


def server_command() -> list[str]:
    """The command line of the server in this container; empty if there is none."""
    for path in sorted(Path("/proc").glob("[0-9]*/cmdline"), key=lambda path: int(path.parent.name)):
        try:
            command = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:  # it has ended
            continue
        if any(Path(word).name == "djl-serving" for word in command[:2]):
            return command
    return []


def connections(address: str, port: int | None) -> list[http.client.HTTPConnection]:
    """Connections to try, in this order."""
    if port is None and address.startswith("unix:"):
        connection = http.client.HTTPConnection("localhost", timeout=TIMEOUT_S)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(TIMEOUT_S)
        connection.sock.connect(address.removeprefix("unix:"))
        return [connection]
    at = urlsplit(address if "//" in address else f"//{address}")
    port = port or at.port or 8080
    host = at.hostname if at.hostname not in (None, "", "0.0.0.0", "::") else "localhost"
    unverified = ssl.create_default_context()
    unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
    return [
        http.client.HTTPConnection(host, port, timeout=TIMEOUT_S),
        http.client.HTTPSConnection(host, port, timeout=TIMEOUT_S, context=unverified),
    ]


def main() -> int:
    """Ask the server; returns the exit code."""
    reason = ""
    try:
        for connection in connections(os.environ.get("SERVING_INFERENCE_ADDRESS", ""), port_of(server_command())):
            try:
                connection.request("GET", "/v2/health/live")
                status = connection.getresponse().status
            except (OSError, http.client.HTTPException) as exc:
                reason = str(exc) or repr(exc)
                continue
            finally:
                connection.close()
            if status == 200:
                return 0
            reason = f"status {status}"
    except (OSError, ValueError) as exc:
        reason = str(exc)
    print(f"not alive: {reason}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
