"""Data URLs: the form in which the OpenAI formats carry bytes inside an address field."""

from __future__ import annotations

from typing import TypedDict

from refold.model.message import Media

_BASE64 = ";base64"


class MediaLocation(TypedDict, total=False):
    """The fields of `Media` that locate the bytes."""

    media_type: str
    data: str
    url: str
    file_id: str


def split_url(url: str) -> MediaLocation:
    """The bytes of a base64 data URL; any other address stays an address."""
    head, comma, data = url.removeprefix("data:").partition(",")
    if comma and url.startswith("data:") and head.endswith(_BASE64):
        return {"media_type": head.removesuffix(_BASE64), "data": data}
    return {"url": url}


def join_url(media: Media) -> str:
    """The address, or a data URL of the bytes (the bytes alone if their type is unknown)."""
    if media.data and media.media_type:
        return f"data:{media.media_type}{_BASE64},{media.data}"
    return media.data or media.url
