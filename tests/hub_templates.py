"""Templates that name a checkpoint of the hub: copies that name one that is here, and the requests of their READMEs."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Final

import httpx

from djl_python.testing import RunningServer
from tests.packaging.documents import ROOT
from tests.packaging.markdown import Curl, curls

TEMPLATES: Final = ROOT / "serving_templates"


def with_checkpoint(template: str, checkpoint: Path, folder: Path) -> Path:
    """A copy of the template in `folder`, whose option.model_id is the checkpoint's directory."""
    copy = folder / template
    shutil.copytree(TEMPLATES / template, copy)
    properties = copy / "serving.properties"
    text, replaced = re.subn(
        r"(?m)^option\.model_id=.*$", f"option.model_id={checkpoint}", properties.read_text(encoding="utf-8")
    )
    assert replaced == 1
    properties.write_text(text, encoding="utf-8")
    return copy


def requests_of(template: str) -> list[Curl]:
    """The curl commands of the template's README."""
    return curls((TEMPLATES / template / "README.md").read_text(encoding="utf-8"))


def send(server: RunningServer, curl: Curl) -> httpx.Response:
    """The server's answer to a curl command that is for a server on port 8080."""
    url = curl.url.replace("http://127.0.0.1:8080", server.url)
    return httpx.request(curl.method, url, headers=curl.headers, content=curl.body, timeout=60)
