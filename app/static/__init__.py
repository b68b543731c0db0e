"""Scripts, styles and the icon of the dashboard: hand-written, served as they are."""
