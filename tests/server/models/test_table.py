import msgspec
import pytest

from djl_python.core.errors import ModelNotFoundError, ModelNotNamedError
from djl_python.server.models.table import ModelTable
from tests.server.harness import model_config, served


def models(*names: str, default: str = "") -> ModelTable:
    table = ModelTable(default)
    for name in names:
        name, _, version = name.partition(":")
        table.put(served(model_config(name, version)))
    return table


async def test_the_only_model_needs_no_name() -> None:
    assert models("a").select("").config.name == "a"
    assert models("a").select("a").config.name == "a"


async def test_of_several_versions_the_last_registered_answers() -> None:
    several = models("a:1", "a:2")
    assert several.select("").config.version == "2"
    assert several.select("a", "1").config.version == "1"
    assert len(several) == 2
    with pytest.raises(ModelNotFoundError, match="'a' has no version '3'; its versions: 1, 2"):
        several.select("a", "3")


async def test_a_model_that_takes_the_place_of_another_keeps_its_turn() -> None:
    several = models("a:1", "a:2", "b")
    first, second, other = several
    put = served(model_config("a", "1"))
    several.put(put)
    assert list(several) == [put, second, other]
    assert several.select("a") is second and several.select("a", "1") is put is not first


async def test_a_model_that_is_removed_is_gone_with_its_last_version() -> None:
    several = models("a:1", "a:2", "b")
    for version in ("2", "1"):
        assert several.names == ["a", "b"]
        several.remove(several.select("a", version))
    assert several.names == ["b"] and several.versions("a") == []
    assert several.only is several.select("b")


async def test_of_several_models_one_must_be_named() -> None:
    with pytest.raises(ModelNotNamedError, match="Parameter model_name is required: loaded: a, b"):
        models("a", "b").select("")
    assert models("a", "b", default="b").select("").config.name == "b"


async def test_an_unknown_model_is_answered_with_what_is_there() -> None:
    with pytest.raises(ModelNotFoundError, match="there is no model 'c'; loaded: a, b"):
        models("a", "b").select("c")
    with pytest.raises(ModelNotFoundError, match="no model is loaded"):
        models().select("")


async def test_a_model_without_a_version_is_found_under_what_an_api_calls_it() -> None:
    mixed = models("a", "b:2")
    assert mixed.select("a", "1", unversioned="1").config.name == "a"
    for name, version, there in (("a", "2", "1"), ("b", "1", "2")):
        with pytest.raises(ModelNotFoundError, match=f"its versions: {there}$"):
            mixed.select(name, version, unversioned="1")


async def test_the_only_one_that_was_there_at_first_answers_where_none_is_named() -> None:
    table = ModelTable()
    table.put(served(model_config("first")), at_startup=True)
    table.put(served(model_config("later")))
    assert table.select("").config.name == "first"
    table.put(served(model_config("first", "2")))
    assert table.select("").config.version == "2"
    for version in ("", "2"):
        table.remove(table.versions("first")[0] if not version else table.select("first", version))
    assert table.select("").config.name == "later"
    table.put(served(model_config("first")))  # which is another now
    with pytest.raises(ModelNotNamedError):
        table.select("")


async def test_an_adapters_name_finds_the_model_that_has_it() -> None:
    table = models("a", "b")
    config = msgspec.structs.replace(model_config("c", ""), adapters={"tom": "/tom", "a": "/a"})
    table.put(served(config))
    assert [table.meant(name).config.name for name in ("tom", "a")] == ["c", "a"]
    with pytest.raises(ModelNotFoundError, match="there is no model 'ann'"):
        table.meant("ann")
    with pytest.raises(ModelNotFoundError, match="there is no model 'tom'"):
        table.meant("tom", may_use=lambda name: name != "c")


async def test_of_several_versions_one_that_has_the_adapter_is_meant() -> None:
    table = models("b")
    for version, adapters in (("", ["x"]), ("1", ["x", "y"]), ("2", ["y", "z"]), ("3", [])):
        config = msgspec.structs.replace(model_config("a", version), adapters={name: f"/{name}" for name in adapters})
        table.put(served(config))
    assert [table.meant(name).config.version for name in ("a", "x", "y", "z")] == ["3", "1", "2", "2"]
    assert table.meant("x", "1", "1") is table.select("a", "1")
    assert table.meant("x", "9", "9").config.version == ""
    for name, version in (("x", "2"), ("y", "3"), ("z", "1")):
        with pytest.raises(ModelNotFoundError, match=f"there is no model '{name}'"):
            table.meant(name, version)


async def test_a_body_may_choose_among_models_and_among_versions_with_adapters() -> None:
    assert models("a", "b").bodies_choose and not models("a").bodies_choose and not models("a:1", "a:2").bodies_choose
    table = models("a:2")
    table.put(served(msgspec.structs.replace(model_config("a", "1"), adapters={"x": "/x"})))
    assert table.bodies_choose


async def test_for_somebody_who_may_use_some_models_there_are_no_others() -> None:
    table = models("a", "b", "c")

    def may_use(name: str) -> bool:
        return name in ("a", "x")

    assert table.select("a", may_use=may_use).config.name == "a"
    for name in ("b", "x", "y"):
        with pytest.raises(ModelNotFoundError, match=f"^there is no model '{name}'; loaded: a$"):
            table.select(name, "7", may_use=may_use)
    with pytest.raises(ModelNotNamedError, match=r"^Parameter model_name is required: loaded: a$"):
        table.select("", may_use=may_use)
    with pytest.raises(ModelNotFoundError, match=r"^no model is loaded$"):
        models("b").select("", may_use=may_use)
