#!/bin/sh
# No arguments (or SageMaker's one, "serve"): djl-serving on every interface, which without -m or -s serves what is
# mounted at /opt/ml/model. Options and models are added to that, a command of djl-serving is one, and anything else
# that is a command is run instead.
set -eu

[ "${1-}" != serve ] || shift

case "${1-}" in
    batch | bench | chat | check | completion | doctor | engines | help | keys | list | ps | pull | run | stop | tls | version)
        exec djl-serving "$@" ;;
    "" | -* | *://* | *=*) ;;
    *) ! command -v "$1" >/dev/null || exec "$@" ;;
esac
# The variable counts anyway: there is nothing to warn of.
[ -n "${SERVING_INFERENCE_ADDRESS-}" ] || set -- --host 0.0.0.0 "$@"
exec djl-serving "$@"
