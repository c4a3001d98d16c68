import resource
import socket
from pathlib import Path

import pytest

from djl_python.config import Address
from djl_python.errors import ConfigError
from djl_python.server.listening import allow_descriptors, bind, bound_address, listen


def close(sockets: list[socket.socket]) -> None:
    for sock in sockets:
        sock.close()


def test_a_bound_port_is_not_open_until_told() -> None:
    sockets = bind(Address("127.0.0.1", 0))
    address = bound_address(sockets, Address("127.0.0.1", 0))
    assert address.port > 0
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((address.host, address.port))
    listen(sockets)
    socket.create_connection((address.host, address.port)).close()
    close(sockets)


def test_a_name_with_several_addresses_has_one_port() -> None:
    sockets = bind(Address("localhost", 0))
    assert len({sock.getsockname()[1] for sock in sockets}) == 1
    close(sockets)


def test_a_taken_port_is_a_configuration_error() -> None:
    sockets = bind(Address("127.0.0.1", 0))
    listen(sockets)
    address = bound_address(sockets, Address("127.0.0.1", 0))
    with pytest.raises(ConfigError, match=f"{address} is in use by another process"):
        bind(address)
    close(sockets)


def test_of_two_servers_that_are_bound_at_once_the_second_is_told() -> None:
    first = bind(Address("127.0.0.1", 0))
    address = bound_address(first, Address("127.0.0.1", 0))
    second = bind(address)
    listen(first)
    with pytest.raises(ConfigError, match=f"{address} is in use by another process"):
        listen(second)
    close([*first, *second])


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
        bind(address)


def test_the_socket_of_a_killed_server_is_replaced_and_that_of_a_living_one_is_not(tmp_path: Path) -> None:
    address = Address(host="", port=0, unix_path=str(tmp_path / "s"))
    close(bind(address))
    sockets = bind(address)
    listen(sockets)
    with pytest.raises(ConfigError, match="in use"):
        bind(address)
    close(sockets)


def test_a_file_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    with pytest.raises(ConfigError):
        bind(Address(host="", port=0, unix_path=str(tmp_path / "file")))
    assert (tmp_path / "file").read_text() == "precious"
