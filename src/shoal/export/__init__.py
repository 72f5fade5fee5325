"""Export of results to files, samples of results, and the coverage of their fields."""

from shoal.export.job import ExportReport, Layout, check_target, export_run
from shoal.export.records import SAMPLE, Coverage, FieldCoverage, first_results, measure_coverage
from shoal.export.targets import Format

__all__ = [
    "SAMPLE",
    "Coverage",
    "ExportReport",
    "FieldCoverage",
    "Format",
    "Layout",
    "check_target",
    "export_run",
    "first_results",
    "measure_coverage",
]
