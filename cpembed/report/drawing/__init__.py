"""A candidate as a picture: one SVG file, or an HTML page that needs nothing beside itself."""
