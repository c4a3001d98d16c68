"""A sum for each client, which its session keeps between requests."""

import numpy as np

from djl_python import Input, Output
from djl_python.session_manager import SessionManager

SESSION_ID = "X-Amzn-SageMaker-Session-Id"
sessions = None


def handle(inputs: Input) -> Output:
    global sessions
    if sessions is None:
        sessions = SessionManager(inputs.get_properties())
    if inputs.is_empty():
        return None
    request = inputs.get_as_json()
    if request.get("requestType") == "NEW_SESSION":
        session = sessions.create_session()
        session.put("sum", np.zeros(2))
        return Output().add_property(SESSION_ID, session.session_id).add_as_json({"result": "created"})
    try:
        session = sessions.get_session(inputs.get_property(SESSION_ID))
    except ValueError as e:
        return Output().error(str(e), code=400, message="bad session")
    if session is None:
        return Output().error("the session has expired", code=404, message="no session")
    if request.get("requestType") == "CLOSE":
        sessions.close_session(session.session_id)
        return Output().add_as_json({"result": "closed"})
    total = session.get("sum") + np.array(request["add"])
    session.put("sum", total)
    return Output().add_as_json({"sum": total})
