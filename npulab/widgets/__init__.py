"""Views of captures, outputs and laws for notebooks: a plain model that works anywhere, and a thin anywidget on it."""

from __future__ import annotations

from npulab.widgets.bisect_view import BisectModel, BisectView
from npulab.widgets.byte_view import ByteModel, ByteView
from npulab.widgets.diff_view import DiffModel, DiffView
from npulab.widgets.law_view import LawModel, LawView
from npulab.widgets.map_editor import MapEditor, MapModel
from npulab.widgets.output_view import OutputModel, OutputView
from npulab.widgets.register_view import RegisterModel, RegisterView

__all__ = ["BisectModel", "BisectView", "ByteModel", "ByteView", "DiffModel", "DiffView", "LawModel", "LawView",
           "MapEditor", "MapModel", "OutputModel", "OutputView", "RegisterModel", "RegisterView"]
