import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from djl_python.config import Address
from djl_python.core.errors import ConfigError
from djl_python.server.http.listening import SocketListener, allow_descriptors


def unix(path: Path) -> Address:
    return Address(host="", port=0, unix_path=str(path))


def test_a_bound_port_is_not_open_until_told() -> None:
    listener = SocketListener(Address("127.0.0.1", 0))
    address = listener.address
    assert address.port > 0
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((address.host, address.port))
    listener.listen()
    socket.create_connection((address.host, address.port)).close()
    listener.close()


def test_a_name_with_several_addresses_has_one_port() -> None:
    listener = SocketListener(Address("localhost", 0))
    assert len({sock.getsockname()[1] for sock in listener.sockets}) == 1
    listener.close()


def test_a_taken_port_is_a_configuration_error() -> None:
    listener = SocketListener(Address("127.0.0.1", 0))
    listener.listen()
    with pytest.raises(ConfigError, match=f"{listener.address} is in use by another process"):
        SocketListener(listener.address)
    listener.close()


def test_of_two_servers_that_are_bound_at_once_the_second_is_told() -> None:
    first = SocketListener(Address("127.0.0.1", 0))
    second = SocketListener(first.address)
    first.listen()
    with pytest.raises(ConfigError, match=f"{first.address} is in use by another process"):
        second.listen()
    first.close()
    second.close()


def test_descriptors_are_as_many_as_there_may_be() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, before[1]), before[1]))
        allow_descriptors()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("address", [Address("192.0.2.1", 0), Address("no.such.host.invalid", 0)])
def test_an_address_that_is_not_ours_is_a_configuration_error(address: Address) -> None:
    with pytest.raises(ConfigError, match="can't listen on"):
        SocketListener(address)


def test_a_unix_socket_is_refused_to_others_from_its_binding_on(tmp_path: Path) -> None:
    address = unix(tmp_path / "s")
    listener = SocketListener(address)
    with pytest.raises(ConfigError, match=f"{address} is in use by another process"):
        SocketListener(address)
    listener.listen()
    with pytest.raises(ConfigError, match=f"{address} is in use by another process"):
        SocketListener(address)
    connect(address).close()
    listener.close()


def test_a_unix_socket_leaves_nothing_behind(tmp_path: Path) -> None:
    SocketListener(unix(tmp_path / "s")).close()
    assert not list(tmp_path.iterdir())


def test_a_unix_socket_that_was_given_up_is_its_successors(tmp_path: Path) -> None:
    address = unix(tmp_path / "s")
    first = SocketListener(address)
    first.close()
    second = SocketListener(address)
    second.listen()
    first.close()
    connect(address).close()
    second.close()


def test_a_unix_socket_that_somebody_replaced_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s"
    listener = SocketListener(unix(path))
    path.unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(str(path))
        listener.close()
    assert path.exists()


def test_the_unix_socket_of_a_killed_server_is_replaced(tmp_path: Path) -> None:
    address = unix(tmp_path / "s")
    killed = (
        "import os, sys; from djl_python.config import Address; "
        "from djl_python.server.http.listening import SocketListener; "
        "SocketListener(Address(unix_path=sys.argv[1])); os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", killed, address.unix_path])
    assert (tmp_path / "s").is_socket()
    listener = SocketListener(address)
    listener.listen()
    connect(address).close()
    listener.close()


def test_a_unix_socket_on_which_another_program_listens_is_not_replaced(tmp_path: Path) -> None:
    address = unix(tmp_path / "s")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(address.unix_path)
        other.listen()
        with pytest.raises(ConfigError, match="in use"):
            SocketListener(address)
        connect(address).close()
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_a_file_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    with pytest.raises(ConfigError):
        SocketListener(unix(tmp_path / "file"))
    assert (tmp_path / "file").read_text() == "precious"


def connect(address: Address) -> socket.socket:
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.connect(address.unix_path)
    return client
