"""A network as an HTML page: :func:`~cpembed.report.network_page.page.write_page`."""

from cpembed.report.network_page.page import page, write_page

__all__ = ["page", "write_page"]
