"""A handler that does nothing, in LitServe. Runs in the peer's environment, not in ours: `litserve_server.py PORT`."""

import sys
from typing import Any

import litserve


class Nothing(litserve.LitAPI):  # type: ignore[misc]
    """Gives the number back that it was sent."""

    def setup(self, device: str) -> None:
        """Nothing to load."""

    def decode_request(self, request):  # type: ignore[no-untyped-def]  # an annotation changes what it is given
        return request["input"]

    def predict(self, x: Any) -> Any:
        return x

    def encode_response(self, output: Any) -> dict[str, Any]:
        return {"output": output}


if __name__ == "__main__":
    server = litserve.LitServer(Nothing(), accelerator="cpu")
    server.run(host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", generate_client_file=False)
