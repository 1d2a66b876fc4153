"""What the rooms of images share."""

import pytest

from wds_tools.image import tiles


@pytest.fixture(params=["kernel", "no kernel"])
def either_way(request, monkeypatch):
    if request.param == "no kernel":
        monkeypatch.setattr(tiles, "kernel", None)
    else:
        tiles.require_kernel()
