"""The FastAPI process: command line, JSON API, live pages; the only package that knows the web."""
