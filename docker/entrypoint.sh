#!/bin/sh
# No arguments (or SageMaker's one, "serve"): djl-serving on every interface, which without -m or -s serves what is
# mounted at /opt/ml/model. Options are added to that. Anything else is a command to run instead.
set -eu

[ "${1-}" != serve ] || shift

case "${1-}" in
    "" | -*)
        # The variable counts anyway: there is nothing to warn of.
        [ -n "${SERVING_INFERENCE_ADDRESS-}" ] || set -- --host 0.0.0.0 "$@"
        exec djl-serving "$@"
        ;;
    *) exec "$@" ;;
esac
