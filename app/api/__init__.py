"""The JSON API: one module per topic; routes parse, call one function, return."""

from fastapi import APIRouter

from loadscope.app.api import (
    control,
    events,
    health,
    loads,
    mapping,
    parameters,
    quant,
    reloads,
    reports,
    stream,
    versions,
    weights,
    what_if,
)

# the stream before the log: both begin with /events
ROUTERS: tuple[APIRouter, ...] = (
    health.router,
    stream.router,
    mapping.router,
    parameters.router,
    reports.router,
    quant.router,
    events.router,
    what_if.router,
    loads.router,
    control.router,
    reloads.router,
    versions.router,
    weights.router,
)
