"""Incremental sentence segmentation, judged on texts whose sentence ends were marked by hand."""
