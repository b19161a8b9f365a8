"""One self-contained page: template, style, scripts and data in a file that needs no network."""

from __future__ import annotations

import json
import zlib
from base64 import b64encode
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from edgevit.reporting.choice import Panel
from edgevit.reporting.details import drawable
from edgevit.reporting.gather import Evidence
from edgevit.reporting.tables import split_reasons
from edgevit.reporting.views import model_view, panel_data, panel_view, tabs
from edgevit.version import written_by

if TYPE_CHECKING:
    from edgevit.reporting.wrong import Mistake

SHIPPED = Path(__file__).with_name("page")
PACKED_CHARACTERS = 1_000_000  # size of all models' parts above which each is packed until a reader opens it
LIMIT_BYTES = 3_000_000  # above, mail and chat begin to refuse a file


def as_html(
    panels: Sequence[Panel], evidence: Evidence, pictures: Mapping[str, Sequence[Mistake]] = MappingProxyType({})
) -> str:
    """The page of these panels and all models, with misclassified images by model."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    def file(name: str) -> Markup:
        return Markup((SHIPPED / name).read_text(encoding="utf-8"))

    loader = FileSystemLoader(SHIPPED)
    templates = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    templates.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    ids = {model.name: f"m{i}" for i, model in enumerate(evidence.models)}
    parts = templates.get_template("parts.html.jinja").module
    models = []
    for model in evidence.models:
        view = model_view(model, ids[model.name], evidence, panels)
        html = parts.model(view, pictures.get(model.name))  # type: ignore[attr-defined]  # a macro
        models.append({"id": view["id"], "name": view["name"], "html": html, "drawn": drawable(view["drawn"])})
    packed = sum(len(model["html"]) for model in models) > PACKED_CHARACTERS
    for shown in models if packed else ():
        shown["packed"] = _packed({"html": str(shown["html"]), "drawn": shown["drawn"]})
    data = {
        "panels": [panel_data(panel, ids) for panel in panels],
        "models": {} if packed else {model["id"]: model["drawn"] for model in models},
    }
    page: str = templates.get_template("page.html.jinja").render(
        edgevit=written_by(),
        created=datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        runs=len(evidence.runs),
        panels=[panel_view(panel, ids) for panel in panels],
        models=models,
        packed=packed,
        tabs=tabs(panels),
        apart=split_reasons(panels),
        skipped=evidence.skipped,
        costs=evidence.costs,
        data=drawable(data),
        file=file,
    )
    return page


def _packed(content: Mapping[str, object]) -> str:
    """Compressed JSON, a tenth of the size, that the page unpacks on demand."""
    text = json.dumps(content, separators=(",", ":"))
    return b64encode(zlib.compress(text.encode("utf-8", "backslashreplace"), 9)).decode()
