"""Hides the passwords of URLs, one way for logs, reports, configs and the database. Pure."""

from __future__ import annotations

import re

MASK = "***"
"""What stands for a secret."""

_USER = r"[a-zA-Z][\w+.-]*://[^\s:/@]*:"
# Up to the last @ before white space: a password that was not percent-encoded may hold
# @, / and ?, and a part of it shown is a password shown. So more may be hidden than must be.
_PASSWORD = re.compile(rf"(\b{_USER})\S*(?=@)")
_SETTING = re.compile(r"([?&][^=&\s]*(?:pass|secret|token)[^=&\s]*=)[^&\s]*", re.IGNORECASE)


def mask_urls(text: str) -> str:
    """The text with the password of every URL in it as ``***``."""
    return _SETTING.sub(rf"\1{MASK}", _PASSWORD.sub(rf"\1{MASK}", text))
