from __future__ import annotations

import pytest

from djl_python.core.access.tenant_limits import TenantLimits


def test_numbers_of_tenants_as_they_are_written() -> None:
    limits = TenantLimits.parse(" gold=600,  team=a=5 , staff=none,")
    assert [limits.of(name, 60) for name in ("gold", "team=a", "staff", "trial", "")] == [600, 5, None, 60, 60]
    assert TenantLimits.parse(str(limits)) == limits
    assert TenantLimits().of("gold", None) is None


@pytest.mark.parametrize("text", ["gold", "gold=", "=5", "gold=0", "gold=-1", "gold=1.5", "gold=many", "gold=٣"])
def test_text_without_a_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^expected NAME=NUMBER"):
        TenantLimits.parse(text)
