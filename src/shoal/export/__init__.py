"""Export of results to files, samples of results, and the coverage of their fields."""

from shoal.export.formats import FileType, Format, file_type
from shoal.export.increments import ExportCursor, IncrementReport, export_new, forget_cursor, list_cursors
from shoal.export.job import ExportReport, Layout, check_target, export_run
from shoal.export.records import SAMPLE, Coverage, FieldCoverage, first_results, measure_coverage

__all__ = [
    "SAMPLE",
    "Coverage",
    "ExportCursor",
    "ExportReport",
    "FieldCoverage",
    "FileType",
    "Format",
    "IncrementReport",
    "Layout",
    "check_target",
    "export_new",
    "export_run",
    "file_type",
    "first_results",
    "forget_cursor",
    "list_cursors",
    "measure_coverage",
]
