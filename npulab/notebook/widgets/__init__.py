"""Views of captures, outputs and laws for notebooks: each is a model that works without a browser,
and a thin anywidget that shows it.
"""

from __future__ import annotations

from npulab.notebook.widgets.bisect_view import BisectModel, BisectView
from npulab.notebook.widgets.byte_view import ByteModel, ByteView
from npulab.notebook.widgets.diff_view import DiffModel, DiffView
from npulab.notebook.widgets.explore_view import ExploreModel, ExploreView
from npulab.notebook.widgets.law_view import LawModel, LawView
from npulab.notebook.widgets.map_editor import MapEditor, MapModel
from npulab.notebook.widgets.operators_view import OperatorsModel, OperatorsView
from npulab.notebook.widgets.output_view import OutputModel, OutputView
from npulab.notebook.widgets.register_view import RegisterModel, RegisterView
from npulab.notebook.widgets.stream_view import StreamModel, StreamView
from npulab.notebook.widgets.sweep_view import SweepModel, SweepView, WritesModel, WritesView

__all__ = [
    "BisectModel",
    "BisectView",
    "ByteModel",
    "ByteView",
    "DiffModel",
    "DiffView",
    "ExploreModel",
    "ExploreView",
    "LawModel",
    "LawView",
    "MapEditor",
    "MapModel",
    "OperatorsModel",
    "OperatorsView",
    "OutputModel",
    "OutputView",
    "RegisterModel",
    "RegisterView",
    "StreamModel",
    "StreamView",
    "SweepModel",
    "SweepView",
    "WritesModel",
    "WritesView",
]
