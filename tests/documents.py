"""Checking a JSON document against its published schema."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import jsonschema
from referencing import Registry, Resource

SCHEMAS = Path(__file__).parents[1] / "docs" / "schemas"


@functools.cache
def _registry() -> Registry[Any]:
    loaded = [json.loads(p.read_text()) for p in SCHEMAS.glob("*.json")]
    return Registry().with_resources((s["$id"], Resource.from_contents(s)) for s in loaded)


def check(document: Any, name: str) -> None:
    """Fail unless the document is as docs/schemas/NAME.json says."""
    schema = json.loads((SCHEMAS / f"{name}.json").read_text())
    jsonschema.Draft202012Validator(schema, registry=_registry()).validate(document)
