"""Views of captures and laws for notebooks: each a plain model that works anywhere, and a thin anywidget on it."""

from __future__ import annotations

from npulab.widgets.bisect_view import BisectModel, BisectView
from npulab.widgets.law_view import LawModel, LawView
from npulab.widgets.register_view import RegisterModel, RegisterView

__all__ = ["BisectModel", "BisectView", "LawModel", "LawView", "RegisterModel", "RegisterView"]
