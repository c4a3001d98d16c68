"""Addresses: which are public, and which are metadata services of clouds."""

from __future__ import annotations

import pytest

from djl_python.fetching.addresses import host_key, is_metadata, is_public


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_public(address: str) -> None:
    assert is_public(address)
    assert not is_metadata(address)


@pytest.mark.parametrize(
    "address",
    [
        *(
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "100.64.0.1",
            "0.0.0.0",
            "224.0.0.1",
            "255.255.255.255",
        ),
        *("::1", "::", "fc00::1", "fec0::1", "ff02::1", "2001:db8::1"),
        # IPv4 in IPv6: mapped, compatible, 6to4, NAT64, Teredo
        *("::ffff:10.0.0.1", "::10.0.0.1", "2002:a00:1::", "64:ff9b::a00:1", "64:ff9b:1::a00:1"),
        "2001:0:4136:e378:8000:63bf:f5ff:fffe",
    ],
)
def test_private(address: str) -> None:
    assert not is_public(address)
    assert not is_metadata(address)


@pytest.mark.parametrize(
    "address",
    [
        *("169.254.169.254", "169.254.0.1", "fe80::1", "fe80::1%eth0", "fd00:ec2::254", "100.100.100.200"),
        *("168.63.129.16", "::ffff:169.254.169.254", "2002:a9fe:a9fe::", "64:ff9b::a9fe:a9fe"),
    ],
)
def test_metadata(address: str) -> None:
    assert is_metadata(address)
    assert not is_public(address)


def test_spellings_of_a_host_have_the_same_key() -> None:
    assert {host_key(host) for host in ("Example.COM", "example.com.", " example.com ")} == {"example.com"}
    assert {host_key(host) for host in ("[2001:DB8::0:1]", "2001:db8::1")} == {"2001:db8::1"}
