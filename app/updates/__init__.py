"""Updates of the weights over HTTP: their record, their events, who changed what."""
