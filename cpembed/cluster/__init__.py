"""Independent tasks in this process, in several, or on the machines of a Dask cluster."""
