"""A handler with sessions: what a client's requests keep between them."""

from djl_python import Input, Output
from djl_python.session_manager import SessionManager

SESSION_ID = "X-Amzn-SageMaker-Session-Id"
sessions: SessionManager


def handle(inputs: Input) -> Output | None:
    global sessions
    if inputs.is_empty():
        sessions = SessionManager(inputs.get_properties())
        return None
    if (answer := sessions.respond(inputs)) is not None:  # a session was opened or closed
        return answer
    session = sessions.get_session(inputs.get_property(SESSION_ID) or "")
    if session is None:
        return Output().error(f"expected the header {SESSION_ID}", code=400)
    words = [*session.get("words", []), inputs.get_as_json()["word"]]
    session.put("words", words)
    return Output().add_as_json({"so far": " ".join(words)})
