"""Worker processes and clusters, measuring, comparing and tuning; knows no machine."""
