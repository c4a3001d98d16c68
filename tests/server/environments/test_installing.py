"""What is installed by real processes of venv and pip, from packages that the tests make."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from djl_python.config import ENVIRONMENT_STAMP as STAMP
from djl_python.config import ModelConfig, worker_environment
from djl_python.core.errors import ModelLoadError
from djl_python.ipc.protocol import Status
from djl_python.server.environments import plan_of, prepare
from tests.processes import until_ended
from tests.server.environments.packages import (
    WORKERS,
    bare_interpreter,
    model_of,
    packages_of,
    read,
    write_sdist,
    write_wheel,
)

Model = Callable[..., ModelConfig]


@pytest.fixture
def links(tmp_path: Path) -> Path:
    """Where pip finds packages."""
    for version in ("1", "2"):
        write_wheel(tmp_path / "links", "cow", version, script=True)
    return tmp_path / "links"


@pytest.fixture
def model(tmp_path: Path, links: Path) -> Model:
    def make(name: str, requirements: str | None, properties: str = "") -> ModelConfig:
        return model_of(tmp_path / name, requirements, links, properties)

    return make


@pytest.fixture
def heard() -> Iterator[list[Status]]:
    yield []


def printed(config: ModelConfig, program: str) -> str:
    """What a program prints that runs as the model's workers do."""
    executable = config.runtime.executable
    assert executable
    done = subprocess.run(
        [executable, "-P", "-c", program], capture_output=True, text=True, env=worker_environment(config), cwd="/"
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def environments(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "cache" / "venvs").glob("*") if path.is_dir())


async def test_an_environment_is_used_again(model: Model, tmp_path: Path, heard: list[Status]) -> None:
    made = await prepare(model("m", "cow==1\n"), heard.append)
    program = "import cow, djl_python.handlers.checks as ours; print(cow.VERSION, ours.__name__)"
    assert printed(made, program) == "1 djl_python.handlers.checks"
    assert {status.detail for status in heard} == {"installing requirements"}
    assert heard[-1].current == "Successfully installed cow-1"
    heard.clear()
    again = await prepare(read(tmp_path / "m"), heard.append)
    assert again.runtime == made.runtime and heard == []


async def test_models_install_in_turns(model: Model) -> None:
    """Whoever has nothing to install does not wait."""
    turns = asyncio.Semaphore(0)
    waiting = asyncio.create_task(prepare(model("m", "horse\n"), lambda _: None, turns))
    none = model("none", None)
    assert await prepare(none, lambda _: None, turns) is none
    assert not waiting.done()
    turns.release()
    with pytest.raises(ModelLoadError, match="No matching distribution found for horse"):
        await waiting


async def test_pips_last_lines_are_why_a_model_does_not_load(model: Model, tmp_path: Path, heard: list[Status]) -> None:
    with pytest.raises(ModelLoadError) as raised:
        await prepare(model("m", "cow\nhorse==3\n"), heard.append)
    first, *rest = raised.value.message.splitlines()
    assert first.startswith(f"{tmp_path}/m/requirements.txt can't be installed: ")
    assert first.endswith(f"-r {tmp_path}/m/requirements.txt ended with status 1:")
    assert rest[-1] == "ERROR: No matching distribution found for horse==3"
    assert environments(tmp_path) == []


@pytest.mark.slow
async def test_a_broken_build_costs_its_model_alone_and_is_tried_again(model: Model, links: Path) -> None:
    write_sdist(links, "snail", "sys.exit('no compiler here')")
    config = model("m", "snail\n")
    with pytest.raises(ModelLoadError, match="no compiler here"):
        await prepare(config, lambda _: None)
    write_sdist(links, "snail", "pass")
    assert printed(await prepare(config, lambda _: None), "import snail; print(snail.VERSION)") == "1"


@pytest.mark.slow
async def test_models_with_the_same_requirements_share_what_is_made_once(
    model: Model, links: Path, tmp_path: Path
) -> None:
    log = tmp_path / "builds"
    write_sdist(links, "snail", f"open({str(log)!r}, 'a').write('built ')")
    configs = [model(name, "snail\n") for name in "abc"]
    made = await asyncio.gather(*(prepare(config, lambda _: None) for config in configs))
    assert len({config.runtime.venv for config in made}) == 1
    assert log.read_text() == "built "


async def test_a_model_that_is_given_up_takes_its_pip_along(model: Model, links: Path, tmp_path: Path) -> None:
    began = tmp_path / "began"
    write_sdist(links, "snail", f"open({str(began)!r}, 'w').write(str(os.getpid())); time.sleep(600)")
    preparing = asyncio.create_task(prepare(model("m", "snail\n"), lambda _: None))
    async with asyncio.timeout(30):
        while not began.exists() or not began.read_text():
            await asyncio.sleep(0.01)
    preparing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await preparing
    await until_ended(int(began.read_text()))
    assert environments(tmp_path) == []


@pytest.mark.slow
async def test_a_killed_servers_environment_is_not_taken_for_complete(
    model: Model, links: Path, tmp_path: Path, heard: list[Status]
) -> None:
    began, go = tmp_path / "began", tmp_path / "go"
    wait = f"\n    while not os.path.exists({str(go)!r}): time.sleep(0.01)"
    write_sdist(links, "snail", f"open({str(began)!r}, 'w').close(){wait}")
    config = model("m", "cow\nsnail\n")
    program = (
        "import asyncio, sys; from pathlib import Path; from djl_python.server.environments import prepare;"
        "from tests.server.environments.packages import read;"
        "asyncio.run(prepare(read(Path(sys.argv[1])), lambda status: None))"
    )
    server = subprocess.Popen(
        [sys.executable, "-c", program, config.path], cwd=Path(__file__).parents[3], stderr=subprocess.DEVNULL
    )
    async with asyncio.timeout(30):
        while not began.exists():
            await asyncio.sleep(0.01)
    server.send_signal(signal.SIGKILL)
    server.wait()
    (left,) = environments(tmp_path)
    assert not (left / STAMP).exists()
    # The pip of the killed server still writes there: it is waited for.
    preparing = asyncio.create_task(prepare(config, heard.append))
    async with asyncio.timeout(30):
        while not heard:
            await asyncio.sleep(0.01)
    assert heard[0].detail == "waiting for an installation of the same"
    go.touch()
    assert printed(await preparing, "import cow, snail; print(cow.VERSION, snail.VERSION)") == "2 1"
    assert environments(tmp_path) == [left] and (left / STAMP).is_file()


@pytest.mark.slow
async def test_packages_that_the_model_brings(model: Model, tmp_path: Path) -> None:
    """As in DJL: offline they alone count, and what they require is not looked for where there is no such folder."""
    write_wheel(tmp_path / "m" / "requirements", "cow", "3", "calf")
    offline = f"option.env=PIP_CONFIG_FILE={os.devnull},DJL_OFFLINE=true"
    with pytest.raises(ModelLoadError, match="No matching distribution found for calf"):
        await prepare(model("m", "cow\n", offline), lambda _: None)
    write_wheel(tmp_path / "m" / "requirements", "calf", "1")
    made = await prepare(read(tmp_path / "m"), lambda _: None)
    assert printed(made, "import calf, cow; print(calf.VERSION, cow.VERSION)") == "1 3"
    write_wheel(tmp_path / "without", "cow", "4", "calf")
    made = await prepare(model("without", "./cow-4-py3-none-any.whl\n", offline), lambda _: None)
    assert printed(made, "import cow; print(cow.VERSION)") == "4"


@pytest.mark.slow
async def test_requirements_may_not_replace_packages_of_workers(model: Model, links: Path, tmp_path: Path) -> None:
    write_wheel(links, "msgspec", "0.18")
    with pytest.raises(ModelLoadError) as raised:
        await prepare(model("m", "msgspec<0.19\n"), lambda _: None)
    assert raised.value.message == (
        f"{tmp_path}/m/requirements.txt: does not go with msgspec>=0.21, which workers need"
    )
    assert environments(tmp_path) == []


@pytest.mark.slow
async def test_the_interpreters_own_packages_are_changed_where_the_user_says_so(model: Model, tmp_path: Path) -> None:
    python = bare_interpreter(tmp_path / "python", *WORKERS, "pip")
    config = model("m", "cow==1\n", f"option.pythonExecutable={python}\noption.enable_venv=false")
    assert config.warnings == (
        f"{tmp_path}/m/requirements.txt changes the packages of {python} (option.enable_venv=false)",
    )
    made = await prepare(config, lambda _: None)
    assert (made.runtime.executable, made.runtime.venv) == (str(python), "")
    assert subprocess.check_output([python, "-c", "import cow; print(cow.VERSION)"], text=True) == "1\n"
    assert environments(tmp_path) == []


@pytest.mark.slow
async def test_packages_that_an_interpreter_lacks_are_installed_beside_it(
    model: Model, links: Path, tmp_path: Path
) -> None:
    python = bare_interpreter(tmp_path / "python", "pip", "attrs", "attr")
    before = packages_of(tmp_path / "python")
    write_wheel(links, "msgspec", "0.21")
    with pytest.raises(ModelLoadError) as raised:
        await prepare(model("m", None, f"option.pythonExecutable={python}"), lambda _: None)
    assert raised.value.message == (
        f"{python} lacks jsonlines>=4.0, msgspec>=0.21, which workers need; pip can't install it "
        f"(ERROR: No matching distribution found for jsonlines>=4.0): "
        f"{python} -m pip install 'jsonlines>=4.0' 'msgspec>=0.21'"
    )
    write_wheel(links, "jsonlines", "4.0", "attrs")
    made = await prepare(read(tmp_path / "m"), lambda _: None)
    assert printed(made, "import msgspec, jsonlines; print(msgspec.VERSION, jsonlines.VERSION)") == "0.21 4.0"
    assert packages_of(tmp_path / "python") == before


@pytest.mark.slow
async def test_torch_comes_with_requirements_or_not_at_all(model: Model, links: Path, tmp_path: Path) -> None:
    python = bare_interpreter(tmp_path / "python", *WORKERS, "pip", "numpy", "numpy.libs", "psutil", "jinja2")
    for name, version in (("accelerate", "1.1"), ("llguidance", "1.9"), ("transformers", "5.9")):
        write_wheel(links, name, version, "torch")
    write_wheel(links, "torch", "2.7")
    config = model("m", "cow\n", f"option.pythonExecutable={python}\noption.entryPoint=djl_python.huggingface")
    with pytest.raises(ModelLoadError, match=r"lacks accelerate.* torch>=2.6.*torch is not installed unasked"):
        await prepare(config, lambda _: None)
    (tmp_path / "m" / "requirements.txt").write_text("torch\n")
    made = await prepare(read(tmp_path / "m"), lambda _: None)
    assert printed(made, "import torch, accelerate; print(torch.VERSION, accelerate.VERSION)") == "2.7 1.1"


@pytest.mark.slow
async def test_an_interpreter_without_pip(model: Model, tmp_path: Path) -> None:
    python = bare_interpreter(tmp_path / "python", *WORKERS)
    made = await prepare(model("m", "cow\n", f"option.pythonExecutable={python}"), lambda _: None)
    assert printed(made, "import cow, djl_python.worker.service; print(cow.VERSION)") == "2"


async def test_an_interpreter_with_all_that_is_needed_is_used_as_it_is(model: Model, tmp_path: Path) -> None:
    python = bare_interpreter(tmp_path / "python", *WORKERS)
    made = await prepare(model("m", None, f"option.pythonExecutable={python}"), lambda _: None)
    assert (made.runtime.executable, made.runtime.venv) == (str(python), "")
    program = "import djl_python.worker.service, djl_python.handlers, importlib.util as i; print(i.find_spec('torch'))"
    assert printed(made, program) == "None"


async def test_a_model_that_asks_for_nothing_runs_as_the_server_does(model: Model, tmp_path: Path) -> None:
    config = model("m", None)
    assert await prepare(config, lambda _: None) is config
    assert plan_of(config) is None and not (tmp_path / "cache").exists()


async def test_a_place_that_can_not_be_written_to_is_named(model: Model, tmp_path: Path) -> None:
    config = model("m", "cow\n")
    (tmp_path / "cache").write_text("")
    with pytest.raises(ModelLoadError, match=r"/cache/venvs: Not a directory; DJL_VENV_DIR says where"):
        await prepare(config, lambda _: None)
