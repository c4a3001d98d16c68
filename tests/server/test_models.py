import pytest

from djl_python.errors import ModelNotFoundError, ModelNotNamedError
from djl_python.server.metrics import Metrics
from djl_python.server.models import Models
from djl_python.server.supervisor import ServedModel

from .harness import model_config


def models(*names: str, default: str = "") -> Models:
    found, metrics = Models(default), Metrics()
    for name in names:
        name, _, version = name.partition(":")
        found.add(ServedModel(model_config(name, version), metrics.model(name, version)))
    return found


async def test_the_only_model_needs_no_name():
    assert models("a").select("").config.name == "a"
    assert models("a").select("a").config.name == "a"


async def test_of_several_versions_the_last_registered_answers():
    several = models("a:1", "a:2")
    assert several.select("").config.version == "2"
    assert several.select("a", "1").config.version == "1"
    assert len(several) == 2
    with pytest.raises(ModelNotFoundError, match="'a' has no version '3'; its versions: 1, 2"):
        several.select("a", "3")


async def test_of_several_models_one_must_be_named():
    with pytest.raises(ModelNotNamedError, match="Parameter model_name is required: loaded: a, b"):
        models("a", "b").select("")
    assert models("a", "b", default="b").select("").config.name == "b"


async def test_an_unknown_model_is_answered_with_what_is_there():
    with pytest.raises(ModelNotFoundError, match="there is no model 'c'; loaded: a, b"):
        models("a", "b").select("c")
    with pytest.raises(ModelNotFoundError, match="no model is loaded"):
        models().select("")
