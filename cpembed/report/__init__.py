"""Reports: the text, tables, pictures and pages that commands print or write of their results."""
