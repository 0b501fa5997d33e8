from __future__ import annotations

import pytest

from refold.model.message import Image
from refold.wire.chat import join_url, split_url


@pytest.mark.parametrize(
    "url, image",
    [
        ("data:image/png;base64,AAAA", Image(media_type="image/png", data="AAAA")),
        (
            "data:image/svg+xml;charset=utf-8;base64,AA==",
            Image(media_type="image/svg+xml;charset=utf-8", data="AA=="),
        ),
        ("data:text/plain,hello", Image(url="data:text/plain,hello")),
        ("https://example.org/a,b;base64,c", Image(url="https://example.org/a,b;base64,c")),
        ("", Image()),
    ],
)
def test_bytes_are_taken_out_of_data_urls_and_put_back(url: str, image: Image):
    assert Image(**split_url(url)) == image
    assert join_url(image) == url
